"""Counts the sequences of a trainer's micro-batches for the integrations, and keeps errors in the integrations from
ending the trainer's job."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

import copus

_DEPTH = 4


def sequences_of(batch: Any, depth: int = _DEPTH) -> int | None:
    """Returns the number of sequences of a micro-batch, or None if the micro-batch has no tensor with a dimension.

    The number is the first dimension of the first such tensor. A micro-batch may be a tensor, or a mapping, sequence,
    dataclass or other object that holds tensors.
    """
    if isinstance(batch, torch.Tensor):
        return batch.shape[0] if batch.ndim > 0 else None
    if depth == 0 or batch is None or isinstance(batch, (str, bytes, int, float, type)):
        return None
    if isinstance(batch, Mapping):
        parts: Any = list(batch.values())
    elif isinstance(batch, Sequence):
        parts = batch
    elif dataclasses.is_dataclass(batch):
        parts = [getattr(batch, field.name) for field in dataclasses.fields(batch)]
    else:
        parts = list(getattr(batch, "__dict__", {}).values())
    return next((found for part in parts if (found := sequences_of(part, depth - 1)) is not None), None)


def never_ends_training(callback: Callable) -> Callable:
    """A callback whose failure stops its `adviser` instead of the training."""

    @functools.wraps(callback)
    def guarded(self: Any, *given: Any, **named: Any) -> Any:
        try:
            return callback(self, *given, **named)
        except Exception as error:
            if self.adviser is None:
                raise
            self.adviser.stop(f"AdviserCallback.{callback.__name__} failed: {type(error).__name__}: {error}")
            return None

    return guarded


def load_state(adviser: copus.Adviser, state: Mapping[str, Any]) -> None:
    """Continues from a trainer's checkpoint; starts anew if its state is damaged."""
    from copus.health import say

    try:
        adviser.load_state_dict(state)
    except copus.UserError as error:
        say(f"{error}: the adviser begins anew")
