"""Advice for Hugging Face's Trainer, which keeps its batch while it trains: it is told what to take next time.

    trainer = Trainer(model=model, args=args, train_dataset=dataset)
    trainer.add_callback(AdviserCallback(trainer, sequence_length=2048, directory="runs/a"))
    trainer.train()

Trainer clips gradients before any callback sees them, and tells callbacks of their norm at logging steps alone. So the
norm before clipping is taken where Trainer has it from: its call of accelerator.clip_grad_norm_, which it makes in
every step, also where max_grad_norm is 0. The first micro-batch's gradient is read when its backward has ended.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

import copus


class AdviserCallback(TrainerCallback):
    """Feeds a copus.Adviser with Trainer's steps, and prints what it advises.

    `advice` holds what it has advised so far. Options are those of copus.Adviser but for the batch, which is Trainer's:
    per_device_train_batch_size x gradient_accumulation_steps x data-parallel ranks. The last step of an epoch is left
    out where it may hold fewer sequences. Copus needs gradients of two sizes in each step; with one micro-batch a step
    on one rank there is only one, and it says so.
    """

    def __init__(self, trainer: Trainer, *, sequence_length: int, **options: Any) -> None:
        if trainer.is_deepspeed_enabled:
            raise ValueError("DeepSpeed keeps gradients to itself, where Copus cannot read them: use DDP or FSDP")
        self._trainer = trainer
        self._options = {"sequence_length": sequence_length, **options}
        self.adviser: copus.Adviser | None = None  # from the beginning of the training on
        self.advice: list[copus.Advice] = []
        self._batch = 0
        self._micro_batches = 0  # of the step that is under way
        self._norm: torch.Tensor | float | None = None  # before clipping
        self._learning_rate: float | None = None
        self._since = time.perf_counter()
        clip = trainer.accelerator.clip_grad_norm_

        def clip_and_remember(*arguments: Any, **named: Any) -> Any:
            self._norm = clip(*arguments, **named)
            return self._norm

        trainer.accelerator.clip_grad_norm_ = clip_and_remember

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._batch = self._trainer.get_total_train_batch_size(args)
        self.adviser = copus.Adviser(batch=self._batch, **self._options)
        self._restart_clock()

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._micro_batches = 1
        self._norm = None

    def on_substep_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, *,
                       model: torch.nn.Module, **_: Any) -> None:
        if self._micro_batches == 1:
            scaler = getattr(self._trainer.accelerator, "scaler", None)
            self.adviser.first_micro_batch(model.parameters(), samples=args.train_batch_size,
                                           loss_scale=scaler.get_scale() if scaler is not None else 1.0)
        self._micro_batches += 1

    def on_pre_optimizer_step(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, *,
                              optimizer: torch.optim.Optimizer, **_: Any) -> None:
        self._learning_rate = optimizer.param_groups[0]["lr"]  # before the scheduler moves on

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, *,
                    train_dataloader: Any, **_: Any) -> None:
        seconds = time.perf_counter() - self._since
        self._restart_clock()
        if self._norm is None or not self._is_whole(args, state, train_dataloader):
            return
        advice = self.adviser.step(self._norm, samples=self._batch, seconds=seconds, lr=self._learning_rate)
        if advice is None:
            return
        is_new = not self.advice or advice.batch != self.advice[-1].batch
        self.advice.append(advice)
        if is_new and state.is_world_process_zero:
            print(f"copus: step {state.global_step}: {advice}", flush=True)

    # What Trainer does between steps is no part of a step; loading data is.
    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._restart_clock()

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._restart_clock()

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._restart_clock()

    def on_epoch_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._restart_clock()

    def _restart_clock(self) -> None:
        self._since = time.perf_counter()

    def _is_whole(self, args: TrainingArguments, state: TrainerState, loader: Any) -> bool:
        """Whether the step that has ended held as many sequences as the arguments say."""
        if self._micro_batches < args.gradient_accumulation_steps:
            return False
        if args.dataloader_drop_last or state.epoch != int(state.epoch):
            return True
        try:
            count = len(loader.dataset)
        except TypeError:
            return False  # nobody knows how many sequences the last micro-batch had
        return count % (self._batch // args.gradient_accumulation_steps) == 0
