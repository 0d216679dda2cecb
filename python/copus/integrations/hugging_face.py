"""Advice for Hugging Face's Trainer. Trainer keeps its batch during a run; the advice is for your next run.

    trainer = Trainer(model=model, args=args, train_dataset=dataset)
    trainer.add_callback(AdviserCallback(trainer, sequence_length=2048, directory="runs/a"))
    trainer.train()

Trainer clips gradients before callbacks see them, and reports the gradient norm to callbacks only at logging steps. But
Trainer calls accelerator.clip_grad_norm_ in every step, even if max_grad_norm is 0, and this callback intercepts the
call to get the norm before clipping. The callback also intercepts Trainer's calls of training_step to count the
sequences of a micro-batch, because neither Trainer's arguments nor a checkpoint say what the data loader returns. After
the backward pass of the first micro-batch, the callback reads the gradient.
"""

from __future__ import annotations

import json
import pathlib
import time
from collections.abc import Callable
from typing import Any

import torch
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

import copus
from copus.health import say
from copus.integrations.batches import load_state, never_ends_training, sequences_of
from copus.wrappers import refuse_wrapper

_STATE_FILE = "copus_adviser.json"


class AdviserCallback(TrainerCallback):
    """Feeds a copus.Adviser with Trainer's steps, and prints its advice.

    `advice` holds all advice so far. After the training, `noise_scale` is (value, low, high) in sequences on rank 0,
    and None elsewhere or if unmeasured. Options are the same as for copus.Adviser except the batch. The batch is
    Trainer's: per_device_train_batch_size x gradient_accumulation_steps x data-parallel ranks. A step with fewer
    micro-batches at the end of an epoch is skipped. The adviser's state is in Trainer's checkpoints. `count` returns
    the number of sequences of a micro-batch, if this is not the size of the first dimension of the first tensor.

    Copus needs the gradients of a small and of a large batch in each step. If a step has a single micro-batch, the
    small batch is one rank's, whose gradient is read before DDP or FSDP2 reduces it. On a single rank such a step has
    no small batch, so the adviser reports that it cannot measure.
    """

    def __init__(
        self, trainer: Trainer, *, sequence_length: int, count: Callable[[Any], int | None] = sequences_of,
        **options: Any,
    ) -> None:  # fmt: skip
        if not isinstance(trainer, Trainer):
            raise copus.UserError(f"AdviserCallback was given a {type(trainer).__name__}; expected the Trainer that "
                                  "it is added to")
        if trainer.is_deepspeed_enabled:
            raise copus.UserError("DeepSpeed keeps gradients to itself, where Copus cannot read them: use DDP or FSDP2")
        self._trainer = trainer
        self._count = count
        self._options = {"sequence_length": sequence_length, **options}
        self.adviser: copus.Adviser | None = None  # from the beginning of the training on
        self.advice: list[copus.Advice] = []
        self.noise_scale: tuple[float | None, float, float | None] | None = None
        self._replicas = 1
        self._sizes: list[int | None] = []  # sequences of the micro-batches so far of the step that is under way
        self._norm: torch.Tensor | float | None = None  # before clipping
        self._learning_rate: float | None = None
        self._since = time.perf_counter()
        clip, train_step = trainer.accelerator.clip_grad_norm_, trainer.training_step

        def clip_and_remember(*arguments: Any, **named: Any) -> Any:
            self._norm = clip(*arguments, **named)
            return self._norm

        def count_and_train(model: Any, inputs: Any, *arguments: Any, **named: Any) -> Any:
            self._look_at_inputs(inputs, *arguments, **named)
            return train_step(model, inputs, *arguments, **named)

        trainer.accelerator.clip_grad_norm_, trainer.training_step = clip_and_remember, count_and_train

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        # A model may be compiled around its wrapper.
        model = getattr(self._trainer.model_wrapped, "_orig_mod", self._trainer.model_wrapped)
        refuse_wrapper(model)
        batch = self._trainer.get_total_train_batch_size(args)
        self._replicas = max(1, batch // (_batch_of_a_rank(self._trainer) * args.gradient_accumulation_steps))
        self.adviser = copus.Adviser(batch=batch, **self._options)
        if state.global_step > 0:
            self._go_on(self._checkpoint(args, state) / _STATE_FILE)
        if args.gradient_accumulation_steps == 1 and args.world_size > 1:
            self.adviser.watch(model, loss_scale=self._loss_scale)
        elif args.gradient_accumulation_steps == 1:
            say("with gradient_accumulation_steps=1 on one rank the noise scale is not measurable, and nothing is "
                "advised; halve per_device_train_batch_size and set gradient_accumulation_steps=2")
        self._restart_clock()

    def _go_on(self, saved: pathlib.Path) -> None:
        try:
            state = json.loads(saved.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            say(f"{saved} cannot be read ({error}): the adviser begins anew")
        else:
            load_state(self.adviser, state)

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._sizes, self._norm = [], None

    @never_ends_training
    def _look_at_inputs(self, inputs: Any, num_items_in_batch: Any = None, **_: Any) -> None:
        """Sees the inputs for which Trainer computes a gradient."""
        if self.adviser is None:
            return
        self._sizes.append(self._count(inputs))
        # Trainer then divides the loss by the step's tokens, which all ranks count together if configured so.
        args = self._trainer.args
        is_of_all_ranks = args.world_size == 1 or getattr(args, "average_tokens_across_devices", False)
        self.adviser.weighted_by_samples = num_items_in_batch is not None and is_of_all_ranks

    @never_ends_training
    def on_substep_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, *,
                       model: torch.nn.Module, **_: Any) -> None:
        if len(self._sizes) == 1 and self._sizes[0] and self._has_all_micro_batches(args):
            self.adviser.first_micro_batch(model.parameters(), samples=self._sizes[0], loss_scale=self._loss_scale())

    @never_ends_training
    def on_pre_optimizer_step(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, *,
                              optimizer: torch.optim.Optimizer, **_: Any) -> None:
        self._learning_rate = optimizer.param_groups[0]["lr"]  # before the scheduler moves on

    @never_ends_training
    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        seconds = time.perf_counter() - self._since
        self._restart_clock()
        if not all(self._sizes):
            self.adviser.stop("Trainer's micro-batches hold no tensor whose first dimension would be their sequences: "
                              "give AdviserCallback(count=...), a function that tells the sequences of one")
            return
        if self._norm is None:
            self.adviser.stop("Trainer has clipped gradients in a way of its own for this model (its parameters are on "
                              "several device meshes), where Copus does not see their norm")
            return
        if not self._has_all_micro_batches(args):
            self.adviser.forget_step()
            return
        if len(set(self._sizes)) > 1 and not self.adviser.weighted_by_samples:
            self.adviser.leave_out()
        advice = self.adviser.step(self._norm, samples=sum(self._sizes) * self._replicas, seconds=seconds,
                                   lr=self._learning_rate)
        if advice is None:
            return
        is_new = not self.advice or advice.batch != self.advice[-1].batch
        self.advice.append(advice)
        if is_new and state.is_world_process_zero:
            print(f"copus: step {state.global_step}: {advice}", flush=True)

    # Trainer's work between steps is not part of a step, but loading data is.
    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._restart_clock()

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._restart_clock()

    @never_ends_training
    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if state.is_world_process_zero:
            told = json.dumps(self.adviser.state_dict())
            (self._checkpoint(args, state) / _STATE_FILE).write_text(told, encoding="utf-8")
        self._restart_clock()

    @never_ends_training
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


def _batch_of_a_rank(trainer: Trainer) -> int:
    """The factors of get_total_train_batch_size: auto_find_batch_size changes it, while the arguments stay."""
    return getattr(trainer, "_train_batch_size", None) or trainer.args.train_batch_size
