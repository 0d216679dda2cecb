"""Advice for Lightning's Trainer. Trainer keeps its batch during a run; the advice is for your next run.

    trainer = lightning.Trainer(accumulate_grad_batches=8, callbacks=[AdviserCallback(sequence_length=2048)])

Lightning calls on_after_backward after each micro-batch and on_before_optimizer_step before it clips. Lightning keeps
no norm, so the callback computes the norm in on_before_optimizer_step. Only automatic optimization is supported: with
manual optimization a callback cannot tell where a step begins.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

import copus
from copus.health import say
from copus.integrations.batches import load_state, never_ends_training, sequences_of
from copus.wrappers import refuse_wrapper


class AdviserCallback(Callback):
    """Feeds a copus.Adviser with the trainer's steps, and prints its advice.

    `advice` holds all advice so far. After the training, `noise_scale` is (value, low, high) in sequences on rank 0,
    and None elsewhere or if unmeasured. Options are the same as for copus.Adviser except the batch. The batch is
    Lightning's: sequences of a micro-batch (the first dimension of its first tensor, or the result of `count`) x
    accumulate_grad_batches x data-parallel ranks. Two kinds of steps are skipped: steps with fewer sequences at the end
    of an epoch, and steps in which training_step returns None for a micro-batch. Copus needs gradients of two sizes in
    each step. With one micro-batch per step it gets both from DDP on several ranks; on a single rank it reports that it
    cannot measure. The adviser's state is in the checkpoints.
    """

    def __init__(
        self, *, sequence_length: int, count: Callable[[Any], int | None] = sequences_of, **options: Any
    ) -> None:
        self._count = count
        self._options = {"sequence_length": sequence_length, **options}
        self.adviser: copus.Adviser | None = None  # from the first batch on
        self.advice: list[copus.Advice] = []
        self.noise_scale: tuple[float | None, float, float | None] | None = None
        self._loaded: dict[str, Any] | None = None
        self._counts = True  # whether the step that is under way has all its micro-batches
        self._sizes: list[int | None] = []  # sequences of its micro-batches so far
        self._passes = 0  # and their backward passes
        self._loss: torch.Tensor | float | None = 0.0  # of the step, so far
        self._norm: torch.Tensor | None = None  # before clipping; None: the step is not at its end
        self._learning_rate: float | None = None
        self._since = time.perf_counter()
        self._has_saved = False  # since the clock began

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not pl_module.automatic_optimization:
            raise copus.UserError("AdviserCallback needs automatic optimization; with a manual one, call copus.Adviser "
                                  "yourself")
        self.adviser = None  # a second fit is another job

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        refuse_wrapper(trainer.strategy.model)
        self._begin_step()

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if self._has_saved:
            self._restart_clock()
        if self.adviser is None:
            self._begin(trainer, self._count(batch) or 1)
        self._look_at_batch(trainer, batch, batch_idx)

    def _begin(self, trainer: Trainer, sequences: int) -> None:
        whole = sequences * trainer.accumulate_grad_batches * _replicas(trainer)
        self.adviser = copus.Adviser(batch=whole, **self._options)
        state, self._loaded = self._loaded, None  # a second fit is another job
        if state is not None:
            load_state(self.adviser, state)
        if trainer.accumulate_grad_batches == 1 and trainer.world_size > 1:
            self.adviser.watch(trainer.strategy.model, loss_scale=lambda: _loss_scale(trainer))
        elif trainer.accumulate_grad_batches == 1:
            say("with accumulate_grad_batches=1 on one rank the noise scale is not measurable, and nothing is advised; "
                "halve the loader's batch_size and set accumulate_grad_batches=2")

    @never_ends_training
    def _look_at_batch(self, trainer: Trainer, batch: Any, batch_idx: int) -> None:
        if not self._sizes:
            self._counts = trainer.num_training_batches - batch_idx >= trainer.accumulate_grad_batches
        size = self._count(batch)
        if not size:
            self.adviser.stop(f"a batch of type {type(batch).__name__} holds no tensor whose first dimension would be "
                              "its sequences: give AdviserCallback(count=...), a function that tells the sequences of "
                              "a batch")
        self._sizes.append(size)

    @never_ends_training
    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._passes += 1
        if self._counts and len(self._sizes) == 1 and self._sizes[0] and trainer.accumulate_grad_batches > 1:
            self.adviser.first_micro_batch(pl_module.parameters(), samples=self._sizes[0],
                                           loss_scale=_loss_scale(trainer))

    @never_ends_training
    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule,
                                 optimizer: torch.optim.Optimizer) -> None:
        gradients = [parameter.grad for parameter in pl_module.parameters() if parameter.grad is not None]
        self._norm = torch.nn.utils.get_total_norm(gradients)
        self._learning_rate = optimizer.param_groups[0]["lr"]

    @never_ends_training
    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any,
                           batch_idx: int) -> None:
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if isinstance(loss, torch.Tensor) and loss.numel() == 1 and self._loss is not None:
            self._loss = self._loss + loss.detach()
        else:
            self._loss = None  # not of all micro-batches
        if self._norm is None:
            return
        seconds, sizes = time.perf_counter() - self._since, self._sizes
        passes, loss, norm = self._passes, self._loss, self._norm
        self._begin_step()
        if not all(sizes) or not self._counts:
            self.adviser.forget_step()
            return
        if passes != len(sizes) or len(set(sizes)) > 1:
            self.adviser.leave_out()
        advice = self.adviser.step(norm, samples=sum(sizes) * _replicas(trainer), seconds=seconds,
                                   lr=self._learning_rate, loss=loss)
        if advice is None:
            return
        is_new = not self.advice or advice.batch != self.advice[-1].batch
        self.advice.append(advice)
        if is_new and trainer.is_global_zero:
            print(f"copus: step {trainer.global_step}: {advice}", flush=True)

    # The trainer's work between steps is not part of a step, but loading data is.
    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._begin_step()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._restart_clock()

    @never_ends_training
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.adviser is not None:
            self.noise_scale = self.adviser.noise_scale()
            self.adviser.close()

    def state_dict(self) -> dict[str, Any]:
        self._has_saved = True
        return {} if self.adviser is None else self.adviser.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._loaded = state_dict or None

    def _begin_step(self) -> None:
        self._sizes, self._passes, self._loss, self._norm = [], 0, 0.0, None
        self._restart_clock()

    def _restart_clock(self) -> None:
        self._since = time.perf_counter()
        self._has_saved = False


def _loss_scale(trainer: Trainer) -> float:
    scaler = getattr(trainer.precision_plugin, "scaler", None)
    return scaler.get_scale() if scaler is not None else 1.0


def _replicas(trainer: Trainer) -> int:
    """Data-parallel ranks: those that get different sequences from the trainer."""
    return getattr(trainer.strategy, "distributed_sampler_kwargs", {}).get("num_replicas", 1)
