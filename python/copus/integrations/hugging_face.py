"""Advice for Hugging Face's Trainer, which keeps its batch while it trains: it is told what to take next time.

    trainer = Trainer(model=model, args=args, train_dataset=dataset)
    trainer.add_callback(AdviserCallback(trainer, sequence_length=2048, directory="runs/a"))
    trainer.train()

Trainer clips gradients before any callback sees them, and tells callbacks of their norm at logging steps alone. So the
norm before clipping is taken where Trainer has it from: its call of accelerator.clip_grad_norm_, which it makes in
every step, also where max_grad_norm is 0. The first micro-batch's gradient is read when its backward has ended.
"""

from __future__ import annotations

import json
import pathlib
import time
import warnings
from typing import Any

import torch
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

import copus

_STATE_FILE = "copus_adviser.json"


class AdviserCallback(TrainerCallback):
    """Feeds a copus.Adviser with Trainer's steps, and prints what it advises.

    `advice` holds what it has advised so far, `noise_scale` what it has measured at the end. Options are those of
    copus.Adviser but for the batch, which is Trainer's: per_device_train_batch_size x gradient_accumulation_steps x
    data-parallel ranks. A step at the end of an epoch with fewer sequences is left out. Copus needs gradients of two
    sizes in each step; with one micro-batch a step, it has them where DDP or FSDP2 reduces gradients of several ranks,
    and says so on a single one. Its state is in Trainer's checkpoints.
    """

    def __init__(self, trainer: Trainer, *, sequence_length: int, **options: Any) -> None:
        if trainer.is_deepspeed_enabled:
            raise copus.UserError("DeepSpeed keeps gradients to itself, where Copus cannot read them: use DDP or FSDP")
        self._trainer = trainer
        self._options = {"sequence_length": sequence_length, **options}
        self.adviser: copus.Adviser | None = None  # from the beginning of the training on
        self.advice: list[copus.Advice] = []
        self.noise_scale: tuple[float | None, float, float | None] | None = None
        self._batch = 0  # sequences of a whole step
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
        saved = self._checkpoint(args, state) / _STATE_FILE
        if state.global_step > 0 and saved.exists():
            self.adviser.load_state_dict(json.loads(saved.read_text(encoding="utf-8")))
        elif state.global_step > 0:
            warnings.warn(f"there is no {saved}: the adviser begins anew", copus.AdviserWarning, stacklevel=2)
        if args.gradient_accumulation_steps == 1 and args.world_size > 1:
            self.adviser.watch(self._trainer.model_wrapped, loss_scale=self._loss_scale)
        elif args.gradient_accumulation_steps == 1:
            warnings.warn("with gradient_accumulation_steps=1 on one rank the noise scale is not measurable, and "
                          "nothing is advised; halve per_device_train_batch_size and set "
                          "gradient_accumulation_steps=2", copus.AdviserWarning, stacklevel=2)
        self._restart_clock()

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._micro_batches = 1
        self._norm = None

    def on_substep_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, *,
                       model: torch.nn.Module, **_: Any) -> None:
        if self._micro_batches == 1 and self._has_all_micro_batches(args):
            self.adviser.first_micro_batch(model.parameters(), samples=state.train_batch_size,
                                           loss_scale=self._loss_scale())
        self._micro_batches += 1

    def on_pre_optimizer_step(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, *,
                              optimizer: torch.optim.Optimizer, **_: Any) -> None:
        self._learning_rate = optimizer.param_groups[0]["lr"]  # before the scheduler moves on

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, *,
                    train_dataloader: Any, **_: Any) -> None:
        seconds = time.perf_counter() - self._since
        self._restart_clock()
        if not self._has_all_micro_batches(args):
            return
        if self._norm is None:
            raise copus.UserError("Trainer has clipped gradients in a way of its own for this model (its parameters "
                                  "are on several device meshes), where Copus does not see their norm; train without "
                                  "AdviserCallback")
        samples = self._batch - self._missing_sequences(args, state, train_dataloader)
        advice = self.adviser.step(self._norm, samples=samples, seconds=seconds, lr=self._learning_rate)
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
        if state.is_world_process_zero:
            told = json.dumps(self.adviser.state_dict())
            (self._checkpoint(args, state) / _STATE_FILE).write_text(told, encoding="utf-8")
        self._restart_clock()

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.noise_scale = self.adviser.noise_scale()
        self.adviser.close()

    def on_epoch_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._restart_clock()

    def _restart_clock(self) -> None:
        self._since = time.perf_counter()

    def _loss_scale(self) -> float:
        scaler = getattr(self._trainer.accelerator, "scaler", None)
        return scaler.get_scale() if scaler is not None else 1.0

    @staticmethod
    def _checkpoint(args: TrainingArguments, state: TrainerState) -> pathlib.Path:
        return pathlib.Path(args.output_dir) / f"checkpoint-{state.global_step}"

    def _has_all_micro_batches(self, args: TrainingArguments) -> bool:
        return self._trainer.current_gradient_accumulation_steps == args.gradient_accumulation_steps

    @staticmethod
    def _missing_sequences(args: TrainingArguments, state: TrainerState, loader: Any) -> int:
        """Sequences that the last micro-batch of an epoch lacks. Several ranks fill it up from its beginning."""
        if args.dataloader_drop_last or args.world_size > 1 or state.epoch != int(state.epoch):
            return 0
        try:
            return -len(loader.dataset) % state.train_batch_size
        except TypeError:
            return 0
