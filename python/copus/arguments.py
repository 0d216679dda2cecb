"""Checks the arguments of the adviser's calls. A UserError says what was given and what is expected."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from copus._core import UserError

try:
    from torch.distributed.tensor import DTensor
except ImportError:  # PyTorch without its distributed package
    DTensor = None  # type: ignore[assignment, misc]

_CALL = "first_micro_batch(parameters)"
_EXPECTED_PARAMETERS = "expected the model's parameters: give model.parameters()"


_MOST = {"samples": 1 << 24, "batch": 1 << 24, "batches": 1 << 24}


def whole(name: str, value: Any, call: str = "Adviser") -> int:
    """A whole number above 0; for samples at most what Copus counts in a batch."""
    try:
        found = 0 if isinstance(value, bool) else operator.index(value)
    except (TypeError, RuntimeError, ValueError):
        found = 0
    if found < 1:
        raise UserError(f"{call}({name}={shown(value)}): expected a whole number above 0")
    if found > _MOST.get(name, found):
        raise UserError(f"{call}({name}={shown(value)}): expected at most {_MOST[name]}")
    return found


def above_zero(name: str, value: Any, call: str, what: str) -> float:
    """Returns a finite number above 0. Reading a number on a device waits for the device."""
    found = _float(value)
    if found is None or not (math.isfinite(found) and found > 0):
        raise UserError(f"{call}({name}={shown(value)}): expected {what}, above 0")
    return found


def batches(values: Any) -> list[int]:
    """The batches to choose from; empty if none are given."""
    if values is None:
        return []
    if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable):
        raise UserError(f"Adviser(batches={shown(values)}): expected a list of whole numbers above 0")
    return [whole("batches", each) for each in values]


def settings(values: Any) -> dict[str, object]:
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        raise UserError(
            f"Adviser(settings={shown(values)}): expected a dictionary, such as {{\"adapt.interval_samples\": 512}}"
        )
    return dict(values)


def directory(value: Any) -> str | None:
    if value is None:
        return None
    try:
        found = os.fspath(value)
    except TypeError:
        found = ""
    if not isinstance(found, str) or not found:
        raise UserError(f"Adviser(directory={shown(value)}): expected a path, or None for no logs")
    return found


def loss_scale(value: Any) -> Tensor | float:
    """A tensor on a device stays there."""
    if isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex() and value.device.type != "cpu":
        return value.detach().reshape(())
    return above_zero("loss_scale", value, "first_micro_batch", "what the loss was multiplied by, such as 1.0")


def norm(value: Any) -> Tensor | float:
    """The norm of a whole gradient: one number, or a tensor of one, which may be a DTensor."""
    expected = "expected the gradient's 2-norm before clipping, one number: what clip_grad_norm_ returns"
    if isinstance(value, Tensor):
        if value.numel() != 1 or value.is_complex() or value.dtype == torch.bool:
            raise UserError(f"step(norm={shown(value)}): {expected}")
        value = value.detach()
        return value if DTensor is not None and isinstance(value, DTensor) else value.reshape(())
    found = _float(value)
    if found is None or found < 0:
        raise UserError(f"step(norm={shown(value)}): {expected}")
    return found


def optional_number(value: Any) -> Tensor | float | None:
    """A number for the log; None if it is not a single number, since nothing is measured with it."""
    if isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex():
        if DTensor is not None and isinstance(value, DTensor):
            return None
        return value.detach().reshape(())
    return _float(value)


def trained(parameters: Any) -> list[Tensor]:
    """Returns the parameters that require a gradient, without duplicates, in their order."""
    if isinstance(parameters, Tensor):
        parameters = [parameters]
    if isinstance(parameters, torch.nn.Module):
        raise UserError(f"{_CALL} was given a module; {_EXPECTED_PARAMETERS}")
    if isinstance(parameters, torch.optim.Optimizer) or hasattr(parameters, "param_groups"):
        raise UserError(f"{_CALL} was given an optimizer; {_EXPECTED_PARAMETERS}")
    if isinstance(parameters, (str, bytes, Mapping)) or not isinstance(parameters, Iterable):
        raise UserError(f"{_CALL} was given {shown(parameters)}; {_EXPECTED_PARAMETERS}")
    found: dict[int, Tensor] = {}
    for parameter in parameters:
        if not isinstance(parameter, Tensor):
            raise UserError(f"{_CALL} was given a list that holds {_kind_of_item(parameter)}; {_EXPECTED_PARAMETERS}")
        if parameter.requires_grad:
            found[id(parameter)] = parameter
    if not found:
        raise UserError(
            f"{_CALL} was given no parameter that requires a gradient; expected those that are trained. "
            "model.parameters() can be gone through once: call it in every step"
        )
    return list(found.values())


def shown(value: Any) -> str:
    if isinstance(value, Tensor) and value.numel() != 1:
        return f"<tensor of shape {tuple(value.shape)}>"
    try:
        text = repr(value)
    except Exception:
        text = ""
    return text if 0 < len(text) <= 60 else f"<{type(value).__name__}>"


def _kind_of_item(item: Any) -> str:
    if isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], str):
        return "pairs of a name and a parameter, as named_parameters() does"
    if isinstance(item, Mapping) and "params" in item:
        return "an optimizer's param_groups"
    return shown(item)


def _float(value: Any) -> float | None:
    if value is None or isinstance(value, (str, bytes, bool, complex)):
        return None
    if isinstance(value, Tensor) and (value.numel() != 1 or value.is_complex()):
        return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return None
