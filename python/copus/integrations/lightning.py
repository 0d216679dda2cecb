"""Advice for Lightning's Trainer, which keeps its batch while it trains: it is told what to take next time.

    trainer = lightning.Trainer(accumulate_grad_batches=8, callbacks=[AdviserCallback(sequence_length=2048)])

Lightning calls on_after_backward behind each micro-batch and on_before_optimizer_step before it clips. It keeps no
norm, so that is measured there. Automatic optimization alone: with a manual one nobody knows where a step begins.
"""

from __future__ import annotations

import time
import warnings
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

import copus


class AdviserCallback(Callback):
    """Feeds a copus.Adviser with the trainer's steps, and prints what it advises.

    `advice` holds what it has advised so far, `noise_scale` what it has measured at the end. Options are those of
    copus.Adviser but for the batch, which is Lightning's: sequences of a micro-batch (the first dimension of its first
    tensor) x accumulate_grad_batches x data-parallel ranks. A step at the end of an epoch with fewer sequences is left
    out. Copus needs gradients of two sizes in each step; with one micro-batch a step, it has them where DDP reduces
    gradients of several ranks, and says so on a single one. Its state is in the checkpoints.
    """

    def __init__(self, *, sequence_length: int, **options: Any) -> None:
        self._options = {"sequence_length": sequence_length, **options}
        self.adviser: copus.Adviser | None = None  # from the first batch on
        self.advice: list[copus.Advice] = []
        self.noise_scale: tuple[float | None, float, float | None] | None = None
        self._loaded: dict[str, Any] | None = None
        self._counts = True  # whether the step that is under way has all its micro-batches
        self._sizes: list[int] = []  # sequences of its micro-batches so far
        self._loss: torch.Tensor | float = 0.0  # of the step, so far
        self._norm: torch.Tensor | None = None  # before clipping; None: the step is not at its end
        self._learning_rate: float | None = None
        self._since = time.perf_counter()
        self._has_saved = False  # since the clock began

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not pl_module.automatic_optimization:
            raise copus.UserError("AdviserCallback needs automatic optimization; with a manual one, call copus.Adviser "
                                  "yourself")
        if trainer.accumulate_grad_batches == 1 and trainer.world_size == 1:
            warnings.warn("with accumulate_grad_batches=1 on one rank the noise scale is not measurable, and nothing "
                          "is advised; halve the loader's batch_size and set accumulate_grad_batches=2",
                          copus.AdviserWarning, stacklevel=2)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if self._has_saved:
            self._restart_clock()
        if not self._sizes:
            self._counts = trainer.num_training_batches - batch_idx >= trainer.accumulate_grad_batches
        self._sizes.append(_sequences(batch))
        if self.adviser is None:
            self._begin(trainer)

    def _begin(self, trainer: Trainer) -> None:
        whole = self._sizes[0] * trainer.accumulate_grad_batches * _replicas(trainer)
        self.adviser = copus.Adviser(batch=whole, **self._options)
        if self._loaded is not None:
            self.adviser.load_state_dict(self._loaded)
        if trainer.accumulate_grad_batches == 1 and trainer.world_size > 1:
            self.adviser.watch(trainer.strategy.model, loss_scale=lambda: _loss_scale(trainer))

    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._counts and len(self._sizes) == 1 and trainer.accumulate_grad_batches > 1:
            self.adviser.first_micro_batch(pl_module.parameters(), samples=self._sizes[0],
                                           loss_scale=_loss_scale(trainer))

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule,
                                 optimizer: torch.optim.Optimizer) -> None:
        gradients = [parameter.grad for parameter in pl_module.parameters() if parameter.grad is not None]
        self._norm = torch.nn.utils.get_total_norm(gradients)
        self._learning_rate = optimizer.param_groups[0]["lr"]

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any,
                           batch_idx: int) -> None:
        self._loss = self._loss + outputs["loss"]
        if self._norm is None:
            return
        seconds = time.perf_counter() - self._since
        samples, loss, norm = sum(self._sizes) * _replicas(trainer), self._loss, self._norm
        self._begin_step()
        if not self._counts:
            return
        advice = self.adviser.step(norm, samples=samples, seconds=seconds, lr=self._learning_rate, loss=loss)
        if advice is None:
            return
        is_new = not self.advice or advice.batch != self.advice[-1].batch
        self.advice.append(advice)
        if is_new and trainer.is_global_zero:
            print(f"copus: step {trainer.global_step}: {advice}", flush=True)

    # What the trainer does between steps is no part of a step; loading data is.
    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._begin_step()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._restart_clock()

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
        self._sizes, self._loss, self._norm = [], 0.0, None
        self._restart_clock()

    def _restart_clock(self) -> None:
        self._since = time.perf_counter()
        self._has_saved = False


def _loss_scale(trainer: Trainer) -> float:
    scaler = getattr(trainer.precision_plugin, "scaler", None)
    return scaler.get_scale() if scaler is not None else 1.0


def _replicas(trainer: Trainer) -> int:
    """Data-parallel ranks: those that the trainer deals different sequences to."""
    return getattr(trainer.strategy, "distributed_sampler_kwargs", {}).get("num_replicas", 1)


def _sequences(batch: Any) -> int:
    """The first dimension of the first tensor of a batch."""
    found = _first_tensor(batch)
    if found is None:
        raise ValueError(f"a batch of type {type(batch).__name__} holds no tensor to count sequences by: expected a "
                         "tensor, or dicts, lists or tuples of them")
    return found.shape[0]


def _first_tensor(batch: Any) -> torch.Tensor | None:
    if isinstance(batch, torch.Tensor):
        return batch
    inner = batch.values() if isinstance(batch, dict) else batch if isinstance(batch, (list, tuple)) else ()
    return next((found for part in inner if (found := _first_tensor(part)) is not None), None)
