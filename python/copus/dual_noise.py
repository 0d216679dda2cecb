"""Noise scales in the dual norms of sign descent and of Muon, in any PyTorch training loop (docs/noise-scale.md).

    noise = copus.DualNoise(model.named_parameters(), optimizer, batch=512, interval=16)
    # in every step, once the gradients are complete (accumulated, reduced, unscaled, clipped):
    noise.step()
    optimizer.step()
    print(noise.sign, noise.spectral)

A measurement compares the gradient of a step with the optimizer's own average of earlier gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from copus import _core, arguments
from copus._core import UserError

__all__ = ["DualNoise", "DualNoiseScale", "is_hidden_matrix"]

_STATE_VERSION = 1
_NORMS = ("sign", "spectral")
_MATRICES_AT_ONCE = 16  # that one measurement measures, of all matrices in turn
_POLYNOMIALS = _core.polar_express_polynomials(12)
_FORGOTTEN = 0.01  # weight of gradients that are older than this object, below which an average counts as full
_EXPECTED = (
    "expected torch.optim.AdamW or Adam, torch.optim.Muon, or SGD with momentum. For another optimizer with a "
    "momentum_buffer, give buffer_is_average=True if it computes m = mu m + (1 - mu) g, or False for m = mu m + g"
)


class DualNoiseScale(NamedTuple):
    """A noise scale in sequences, with its 95 % interval. `value` and `high` are None while noise hides the signal."""

    value: float | None
    low: float
    high: float | None


class _Average(NamedTuple):
    """Of earlier gradients: the sum of `count` gradients' weights is 1, and each weight is `decay` times the next."""

    mean: Tensor
    decay: float
    count: int


def is_hidden_matrix(name: str, parameter: Tensor) -> bool:
    """The default filter: leaves out embeddings and the head, by the names of Hugging Face's models."""
    return "embed" not in name and "lm_head" not in name


class DualNoise:
    """Measures how large a batch still helps steps of sign descent (`sign`) and of Muon (`spectral`).

    Args:
        named_parameters: model.named_parameters(). Only matrices that `optimizer` updates are measured.
        optimizer: AdamW, Adam, torch.optim.Muon, SGD with momentum, or another with such averages of gradients.
        batch: sequences of a step, over all ranks. The gradient is their mean.
        interval: every interval-th step is measured, on some 16 matrices, other ones each time.
        select: function of a parameter's name and the parameter; True for the matrices to measure.
        buffer_is_average: needed for optimizers that are not PyTorch's: whether their momentum_buffer is an average,
            mu m + (1 - mu) g, or a sum, mu m + g.

    Every rank calls `step`. Data-parallel ranks find the same numbers. A pipeline's rank measures its own stage.
    Raises copus.UserError for invalid arguments, and in `step` for gradients or an optimizer that cannot be measured.
    """

    def __init__(
        self,
        named_parameters: Iterable[tuple[str, Tensor]],
        optimizer: torch.optim.Optimizer,
        batch: int,
        interval: int = 16,
        *,
        select: Callable[[str, Tensor], bool] = is_hidden_matrix,
        buffer_is_average: bool | None = None,
    ):
        self._batch = arguments.whole("batch", batch, "DualNoise")
        self._interval = arguments.whole("interval", interval, "DualNoise")
        if not hasattr(optimizer, "param_groups") or not hasattr(optimizer, "state"):
            raise UserError(f"DualNoise(optimizer={arguments.shown(optimizer)}): {_EXPECTED}")
        self._optimizer = optimizer
        # PyTorch's Muon computes an average, by lerp_. Its documentation shows a sum.
        is_muon = hasattr(torch.optim, "Muon") and isinstance(optimizer, torch.optim.Muon)
        if buffer_is_average is None and (is_muon or isinstance(optimizer, torch.optim.SGD)):
            buffer_is_average = is_muon
        self._buffer_is_average = buffer_is_average
        groups = self._groups()
        self._matrices = [
            (name, parameter)
            for name, parameter in _pairs(named_parameters)
            if id(parameter) in groups and _is_matrix(parameter) and select(name, parameter)
        ]
        if not self._matrices:
            raise UserError(
                "DualNoise(named_parameters): there is no matrix that `select` accepts and the optimizer updates; "
                "expected two-dimensional parameters that require a gradient. Shard the model before building the "
                "optimizer; FSDP1 makes all parameters one-dimensional, FSDP2 does not"
            )
        for name, parameter in self._matrices:
            self._check_group(name, groups[id(parameter)])
        self._steps = 0
        self._averages: dict[str, dict[str, float]] = {norm: {} for norm in _NORMS}

    @torch.no_grad()
    def step(self, batch: int | None = None) -> None:
        """Measures the gradients in p.grad, if this step's turn has come. Call this right before optimizer.step().

        `batch` is this step's batch, if it is not the constructor's. The call waits for the device in measured steps.
        """
        batch = self._batch if batch is None else arguments.whole("batch", batch, "DualNoise.step")
        self._steps += 1
        number, rest = divmod(self._steps, self._interval)
        if rest:
            return
        turns = max(1, len(self._matrices) // _MATRICES_AT_ONCE)
        groups = self._groups()
        norms, variances = [], []
        for name, parameter in self._matrices[number % turns :: turns]:
            group = groups[id(parameter)]
            average = self._average_of(name, parameter, group)
            if parameter.grad is None or average is None:
                continue
            norms.append(_dual_norms(self._gradient_of(name, parameter, group), average.mean))
            variances.append(_core.variance_of_average(average.decay, average.count))
        if not norms:
            return
        sums = torch.stack([each.to(norms[0].device) for each in norms]).sum(0).tolist()
        mean_variance = sum(variances) / len(variances)  # they differ only if parameters skip steps
        for norm, noise, signal in zip(_NORMS, sums[::2], sums[1::2]):
            self._averages[norm] = _core.observe_dual_noise(self._averages[norm], noise, signal, batch, mean_variance)

    @property
    def sign(self) -> DualNoiseScale | None:
        """The noise scale for steps of sign descent, and about for Adam's; None before two measurements."""
        return self._scale("sign")

    @property
    def spectral(self) -> DualNoiseScale | None:
        """The noise scale for steps of Muon; None before two measurements."""
        return self._scale("spectral")

    def state_dict(self) -> dict[str, Any]:
        """The state for a checkpoint, of plain numbers. A job that loads it continues exactly."""
        averages = {norm: dict(average) for norm, average in self._averages.items()}
        return {"version": _STATE_VERSION, "steps": self._steps, **averages}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if not isinstance(state, Mapping) or state.get("version") != _STATE_VERSION:
            raise UserError(
                f"DualNoise.load_state_dict was given {arguments.shown(state)}; expected what state_dict() returned, "
                f"of version {_STATE_VERSION}"
            )
        steps = state.get("steps")
        averages: dict[str, Any] = {norm: state.get(norm) for norm in _NORMS}
        if type(steps) is not int or not all(isinstance(average, dict) for average in averages.values()):
            raise UserError("DualNoise.load_state_dict: the state is damaged; expected what state_dict() returned")
        for average in averages.values():
            _core.dual_noise_scale(average)  # raises UserError if a number is missing
        self._steps, self._averages = steps, {norm: dict(average) for norm, average in averages.items()}

    def _groups(self) -> dict[int, dict[str, Any]]:
        """The optimizer's groups by the ids of their parameters. A loaded checkpoint replaces the groups."""
        return {id(parameter): group for group in self._optimizer.param_groups for parameter in group["params"]}

    def _scale(self, norm: str) -> DualNoiseScale | None:
        found = _core.dual_noise_scale(self._averages[norm])
        return None if found is None else DualNoiseScale(*found)

    def _check_group(self, name: str, group: Mapping[str, Any]) -> None:
        if "betas" in group or (group.get("momentum") and self._buffer_is_average is not None):
            return
        kind = type(self._optimizer).__name__
        what = "momentum 0" if group.get("momentum") == 0 else "no known average of gradients"
        raise UserError(f"DualNoise(optimizer): {kind} has {what} for {name}; {_EXPECTED}")

    def _average_of(self, name: str, parameter: Tensor, group: Mapping[str, Any]) -> _Average | None:
        """Returns None before the optimizer's first steps, and while an average of unknown age may be too young."""
        state = self._optimizer.state.get(parameter)
        if not state:
            return None
        is_adam = "betas" in group
        buffer = state.get("exp_avg" if is_adam else "momentum_buffer")
        step = state.get("step", group.get("step")) if is_adam else self._steps - 1
        if buffer is None or step is None:
            kind = type(self._optimizer).__name__
            raise UserError(f"DualNoise.step: {kind} keeps only {', '.join(map(str, state))} of {name}; {_EXPECTED}")
        decay, count = float(group["betas"][0] if is_adam else group["momentum"]), int(step)
        if count < 1 or (not is_adam and decay**count > _FORGOTTEN):
            return None
        weights = 1 - decay**count
        if not is_adam and not self._buffer_is_average:
            weights *= (1 - float(group.get("dampening", 0))) / (1 - decay)
        return _Average(_whole(buffer) / weights, decay, count)

    def _gradient_of(self, name: str, parameter: Tensor, group: Mapping[str, Any]) -> Tensor:
        """Returns the gradient as the optimizer averages it, which may include weight decay."""
        if parameter.grad.is_sparse:
            raise UserError(
                f"DualNoise.step: the gradient of {name} is sparse, which is not supported: build the embedding with "
                "sparse=False, or leave it out by `select`"
            )
        gradient = _whole(parameter.grad)
        if group.get("maximize"):
            gradient = -gradient
        is_coupled = isinstance(self._optimizer, torch.optim.SGD) or group.get("decoupled_weight_decay") is False
        if is_coupled and group["weight_decay"]:
            gradient = gradient.add(_whole(parameter), alpha=float(group["weight_decay"]))
        return gradient


def _pairs(named_parameters: Any) -> list[tuple[str, Tensor]]:
    expected = "expected pairs of a name and a parameter: give model.named_parameters()"
    if isinstance(named_parameters, torch.nn.Module) or not isinstance(named_parameters, Iterable):
        raise UserError(f"DualNoise(named_parameters={arguments.shown(named_parameters)}): {expected}")
    pairs = list(named_parameters)
    for pair in pairs:
        if not (isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[1], Tensor)):
            raise UserError(f"DualNoise(named_parameters) holds {arguments.shown(pair)}; {expected}")
    return pairs


def _is_matrix(parameter: Tensor) -> bool:
    return parameter.ndim == 2 and parameter.requires_grad and parameter.is_floating_point()


def _whole(tensor: Tensor) -> Tensor:
    """Returns the whole of a tensor in float32. All ranks of a DTensor's mesh must call this."""
    is_sharded = arguments.DTensor is not None and isinstance(tensor, arguments.DTensor)
    return (tensor.full_tensor() if is_sharded else tensor).detach().float()


def _dual_norms(gradient: Tensor, mean: Tensor) -> Tensor:
    """Returns, for each of _NORMS, the noise |g - m|* and the signal <g, d>, with the unit step d along m."""
    noise = gradient - mean
    with torch.autocast(gradient.device.type, enabled=False):
        pairs = [
            (noise, noise.sign()), (gradient, mean.sign()),
            (noise, _orthogonal_factor(noise)), (gradient, _orthogonal_factor(mean)),
        ]  # fmt: skip
    return torch.stack([(one * other).sum(dtype=torch.float64) for one, other in pairs])


def _orthogonal_factor(matrix: Tensor) -> Tensor:
    """Returns the matrix with singular values of 1, except for values that are tiny beside the largest."""
    is_tall = matrix.shape[0] > matrix.shape[1]
    x = matrix / matrix.norm().clamp_min(1e-30)
    x = x.T if is_tall else x
    for a, b, c in _POLYNOMIALS:
        square = x @ x.T
        x = torch.addmm(x, torch.addmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return x.T if is_tall else x
