"""A torchtitan job that follows Copus' advice: it changes its gradient accumulation and learning rate.

    trainer = config.build()
    following = Following(trainer, directory="runs/a")
    trainer.train()

torchtitan reads trainer.gradient_accumulation_steps in every step and divides losses by the step's tokens, so
accumulation may change between steps. Versions that divide by the initial accumulation are refused. With an
accumulation of 1 nothing can be measured, so advice to use 1 is not followed. The learning rate's schedule continues
by steps. The factor for the batch is applied in every step and is not part of a checkpoint.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Iterator
from typing import Any

import torch
from torchtitan.distributed import utils as dist_utils

import copus


class Following:
    """Feeds a copus.Adviser with the steps of a torchtitan Trainer, and changes its batch as advised.

    `advice` holds the advice followed so far. Options are the same as for copus.Adviser, except batch and
    sequence_length, which come from the trainer. torchtitan's checkpoints hold neither the batch nor the adviser: save
    `following.adviser.state_dict()` yourself. A resumed job begins with the configured batch. Raises copus.UserError if
    this version of torchtitan is not supported.
    """

    def __init__(self, trainer: Any, **options: Any) -> None:
        if "global_valid_tokens" not in inspect.signature(trainer.forward_backward_step).parameters:
            raise copus.UserError("this torchtitan divides losses by the gradient accumulation that it began with, "
                                  "which cannot change then: expected a version whose forward_backward_step takes "
                                  "global_valid_tokens")
        self._trainer = trainer
        self._forward_backward_step, self._train_step = trainer.forward_backward_step, trainer.train_step
        self._has_pipeline = trainer.parallel_dims.pp_enabled
        self._replicas = trainer.parallel_dims.get_mesh("batch").size() if trainer.parallel_dims.dp_enabled else 1
        self._sequences = trainer.config.training.local_batch_size
        self.adviser = copus.Adviser(batch=self._batch, sequence_length=trainer.config.training.seq_len, **options)
        self.advice: list[copus.Advice] = []
        self._rate_factor = 1.0
        self._losses: list[torch.Tensor] = []  # of the micro-batches of the step that is under way
        self._norm: torch.Tensor | None = None  # before clipping
        trainer.forward_backward_step, trainer.train_step = self._forward_backward, self._train

    @property
    def _batch(self) -> int:
        return self._sequences * self._replicas * self._trainer.gradient_accumulation_steps

    def _forward_backward(self, **arguments: Any) -> torch.Tensor:
        loss = self._forward_backward_step(**arguments)
        if not self._losses and self._trainer.gradient_accumulation_steps > 1:
            parameters = [parameter for part in self._trainer.model_parts for parameter in part.parameters()]
            self.adviser.first_micro_batch(parameters, samples=self._sequences)
        self._losses.append(loss.detach().clone())  # a replayed graph writes over its own
        return loss

    def _train(self, data_iterator: Iterator[Any]) -> None:
        begin = time.perf_counter()
        self._losses, self._norm = [], None
        clip = dist_utils.clip_grad_norm_

        def clip_and_remember(*arguments: Any, **named: Any) -> torch.Tensor:
            self._norm = clip(*arguments, **named)
            return self._norm

        groups = [group for optimizer in self._trainer.optimizers for group in optimizer.param_groups]
        for group in groups:
            group["lr"] *= self._rate_factor  # the schedule sets it anew behind the step
        learning_rate = float(groups[0]["lr"])
        dist_utils.clip_grad_norm_ = clip_and_remember
        try:
            self._train_step(data_iterator)
        finally:
            dist_utils.clip_grad_norm_ = clip
        # A rank has its share of the loss over all tokens. In a pipeline, only some ranks have a loss.
        loss = None if self._has_pipeline else torch.stack(self._losses).sum() * self._replicas
        advice = self.adviser.step(self._norm, samples=self._batch, seconds=time.perf_counter() - begin,
                                   lr=learning_rate, loss=loss)
        # A step of a single micro-batch would end the measuring, because torchtitan exposes no gradient of a part of
        # it.
        if advice is not None and advice.micro_batches > 1:
            self.advice.append(advice)
            self._trainer.gradient_accumulation_steps = advice.batch // (self._sequences * self._replicas)
            self._rate_factor = advice.learning_rate_factor
