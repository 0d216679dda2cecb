"""Noise scales in the norms of sign descent, Muon and AdamW, in any PyTorch training loop (docs/noise-scale.md).

    noise = copus.DualNoise(model.named_parameters(), optimizer, batch=512, interval=16)
    for index, tokens in enumerate(micro_batches):
        (loss_of(model, tokens) / len(micro_batches)).backward()
        if index == 0:
            noise.part(share=1 / len(micro_batches))
    noise.step()  # before gradients are unscaled or clipped
    optimizer.step()
    print(noise.sign, noise.spectral, noise.preconditioned)

A measurement compares the gradient of one part of a step's samples with the gradient of the others. Both belong to the
same weights. Gradients of earlier steps could not be used: the weights have moved along them since, so the later
gradient hardly contains them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from copus import _core, arguments
from copus._core import UserError

__all__ = ["DualNoise", "DualNoiseScale", "is_hidden_matrix"]

_STATE_VERSION = 1
_NORMS = ("sign", "spectral", "preconditioned")
_MATRICES_AT_ONCE = 16  # that one measurement measures, of all matrices in turn
_POLYNOMIALS = _core.polar_express_polynomials(12)


class DualNoiseScale(NamedTuple):
    """A noise scale in sequences, with its 95 % interval. `value` and `high` are None while noise hides the signal."""

    value: float | None
    low: float
    high: float | None


class _Part(NamedTuple):
    """A share of a step's samples, with copies of its gradients; None for matrices that have none yet."""

    share: float
    gradients: list[Tensor | None]


def is_hidden_matrix(name: str, parameter: Tensor) -> bool:
    """The default filter: leaves out embeddings and the head, by the names of Hugging Face's models."""
    return "embed" not in name and "lm_head" not in name


class DualNoise:
    """Measures how large a batch still helps steps of sign descent, Muon and AdamW.

    Args:
        named_parameters: model.named_parameters(). Only matrices that require a gradient are measured.
        optimizer: needed for `preconditioned`; it must keep an average exp_avg_sq of squared gradients, as AdamW does.
        batch: sequences of a step, over all ranks. The gradient is their mean, or their mean times a constant.
        interval: every interval-th step is measured. With 32 matrices or more, a measurement covers 16 to 24 of them,
            in turn.
        select: function of a parameter's name and the parameter; True for the matrices to measure.
        group: process group of the ranks that train the same parameters; by default all ranks. With a pipeline, the
            ranks of one stage.

    All ranks of the group make the same calls and find the same numbers. Raises copus.UserError for invalid arguments,
    for calls in the wrong order and for gradients that cannot be measured.
    """

    def __init__(
        self,
        named_parameters: Iterable[tuple[str, Tensor]],
        optimizer: torch.optim.Optimizer | None = None,
        *,
        batch: int,
        interval: int = 16,
        select: Callable[[str, Tensor], bool] = is_hidden_matrix,
        group: torch.distributed.ProcessGroup | None = None,
    ):
        self._batch = arguments.whole("batch", batch, "DualNoise")
        self._interval = arguments.whole("interval", interval, "DualNoise")
        self._group = group
        self._matrices = [
            (name, parameter)
            for name, parameter in _pairs(named_parameters)
            if _is_matrix(parameter) and select(name, parameter)
        ]
        if not self._matrices:
            raise UserError(
                "DualNoise(named_parameters): there is no matrix that `select` accepts; expected two-dimensional "
                "parameters that require a gradient. FSDP1 makes all parameters one-dimensional, FSDP2 does not"
            )
        self._optimizer = optimizer
        self._check_optimizer()
        self._steps = 0
        self._part: _Part | None = None
        self._averages: dict[str, dict[str, float]] = {norm: {} for norm in _NORMS}

    @property
    def is_due(self) -> bool:
        """Whether the current step, which the next call of `step` ends, is measured."""
        return (self._steps + 1) % self._interval == 0

    @torch.no_grad()
    def part(self, share: float) -> None:
        """Copies the gradients in p.grad; does nothing in a step that is not measured.

        Call this once in a step, between two backward passes. p.grad then holds the gradient of a part of the step's
        samples. `share` is the fraction of the samples in that part: 1 / len(micro_batches) after the first
        micro-batch.
        """
        if not self.is_due:
            return
        share = arguments.above_zero("share", share, "DualNoise.part", "the part's share of the step's samples")
        if share >= 1:
            raise UserError(
                f"DualNoise.part(share={share}): expected a number below 1, so that the step has other samples: where "
                "is_due, cut its batch into two micro-batches at least. In a step of one sample, call neither part() "
                "nor step()"
            )
        if self._part is not None:
            raise UserError(
                f"DualNoise.part was called twice in step {self._steps + 1}; expected one call of part() in a step, "
                "and step() at its end"
            )
        gradients = self._gradients("part")
        self._part = _Part(share, [None if each is None else each.clone() for each in gradients])

    @torch.no_grad()
    def step(self, batch: int | None = None, loss_scale: float = 1.0) -> None:
        """Measures this step's gradients, if its turn has come. Call this after the last backward pass.

        p.grad must hold the gradient of all samples, reduced over the ranks, and in the scale that it had when `part`
        was called: not yet unscaled and not yet clipped. `batch` is this step's batch, if it differs from the
        constructor's. `loss_scale` is the factor on the loss in both calls: a gradient scaler's get_scale(). The call
        waits for the device in measured steps.
        """
        batch = self._batch if batch is None else arguments.whole("batch", batch, "DualNoise.step")
        loss_scale = arguments.above_zero("loss_scale", loss_scale, "DualNoise.step", "the factor on the loss")
        part, due = self._part, self._due()
        if due and part is None:
            raise UserError(
                f"DualNoise.step: step {self._steps + 1} is measured, but part() was not called in it; expected "
                "part(share=1 / len(micro_batches)) after the backward pass of the step's first micro-batch"
            )
        gradients = self._gradients("step")
        self._steps += 1
        self._part = None
        if not due:
            return
        groups = self._groups()
        sums = [
            self._sums(parameter, copied, gradient, part.share, groups.get(id(parameter)))
            for (_, parameter), copied, gradient in zip(due, part.gradients, gradients)
        ]
        found = torch.stack([each.to(sums[0].device) for each in sums]).sum(0)
        sign_noise, sign, spectral_noise, spectral, squared_noise, product, squared_mean = found.tolist()
        norms = {"sign": (sign_noise, sign), "spectral": (spectral_noise, spectral)}
        if squared_mean > 0:
            norms["preconditioned"] = math.sqrt(squared_noise), product / math.sqrt(squared_mean)
        for norm, (noise, signal) in norms.items():
            self._averages[norm] = _core.observe_dual_noise(
                self._averages[norm], noise / loss_scale, signal / loss_scale, batch * part.share,
                part.share / (1 - part.share),
            )  # fmt: skip

    @property
    def sign(self) -> DualNoiseScale | None:
        """The noise scale for steps of sign descent; None before two measurements."""
        return self._scale("sign")

    @property
    def spectral(self) -> DualNoiseScale | None:
        """The noise scale for steps of Muon; None before two measurements."""
        return self._scale("spectral")

    @property
    def preconditioned(self) -> DualNoiseScale | None:
        """The noise scale for steps of AdamW, with the second moments of `optimizer`.

        None until there are two measurements after the optimizer's first step, or if the optimizer keeps no second
        moments.
        """
        return self._scale("preconditioned")

    def state_dict(self) -> dict[str, Any]:
        """The state between two steps for a checkpoint, of plain numbers. A job that loads it continues exactly."""
        averages = {norm: dict(average) for norm, average in self._averages.items()}
        return {"version": _STATE_VERSION, "steps": self._steps, **averages}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores what state_dict() returned. Call it between two steps, on every rank. Raises copus.UserError for any
        other value."""
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
        self._part = None

    def _check_optimizer(self) -> None:
        if self._optimizer is None:
            return
        if not hasattr(self._optimizer, "param_groups") or not hasattr(self._optimizer, "state"):
            raise UserError(
                f"DualNoise(optimizer={arguments.shown(self._optimizer)}): expected a torch.optim.Optimizer or None"
            )
        groups = self._groups()
        if not any(id(parameter) in groups for _, parameter in self._matrices):
            raise UserError(
                "DualNoise(optimizer): it updates none of the matrices; expected the optimizer of `named_parameters`. "
                "Shard the model before building the optimizer"
            )

    def _groups(self) -> dict[int, dict[str, Any]]:
        """The optimizer's groups by the ids of their parameters. Not cached: loading a checkpoint replaces the
        groups."""
        groups = [] if self._optimizer is None else self._optimizer.param_groups
        return {id(parameter): group for group in groups for parameter in group["params"]}

    def _scale(self, norm: str) -> DualNoiseScale | None:
        found = _core.dual_noise_scale(self._averages[norm])
        return None if found is None else DualNoiseScale(*found)

    def _due(self) -> list[tuple[str, Tensor]]:
        """The matrices that the current step measures."""
        if not self.is_due:
            return []
        turns = max(1, len(self._matrices) // _MATRICES_AT_ONCE)
        return self._matrices[(self._steps + 1) // self._interval % turns :: turns]

    def _gradients(self, call: str) -> list[Tensor | None]:
        """Returns p.grad of the matrices that are due. A single one may be None, for example of an idle expert."""
        due = self._due()
        for name, parameter in due:
            if parameter.grad is not None and parameter.grad.is_sparse:
                raise UserError(
                    f"DualNoise.{call}: the gradient of {name} is sparse, which is not supported: build the embedding "
                    "with sparse=False, or leave it out by `select`"
                )
        if due and all(parameter.grad is None for _, parameter in due):
            raise UserError(
                f"DualNoise.{call}: no measured matrix has a gradient in step {self._steps + 1}; expected a call after "
                "a backward pass and before zero_grad(). FSDP2 leaves p.grad None in a backward pass under "
                "set_requires_gradient_sync(False)"
            )
        return [parameter.grad for _, parameter in due]

    def _sums(
        self,
        parameter: Tensor,
        part: Tensor | None,
        total: Tensor | None,
        share: float,
        group: Mapping[str, Any] | None,
    ) -> Tensor:
        """Returns the sums of _dual_norms() for a matrix. `part` and `total`: its gradients at both calls."""
        whole_part, whole = (_whole(torch.zeros_like(parameter) if each is None else each) for each in (part, total))
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            # Local gradients, as DDP has them under no_sync, become their mean. Reduced ones are equal on all ranks.
            torch.distributed.all_reduce(whole_part, group=self._group)
            whole_part /= torch.distributed.get_world_size(self._group)
        others = (whole - whole_part) / (1 - share)
        return _dual_norms(whole_part / share, others, self._divisors(parameter, group))

    def _divisors(self, parameter: Tensor, group: Mapping[str, Any] | None) -> Tensor | None:
        """Returns AdamW's sqrt(v) + eps. v is not corrected for its start at 0, because a common factor cancels.

        Returns None before the optimizer's first step, and for an optimizer without v.
        """
        if group is None or "eps" not in group:
            return None
        squares = self._optimizer.state.get(parameter, {}).get("exp_avg_sq")
        if squares is None or squares.shape != parameter.shape:
            return None
        return _whole(squares).sqrt().add(float(group["eps"]))


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
    return (tensor.full_tensor() if is_sharded else tensor).detach().float().contiguous()


def _dual_norms(gradient: Tensor, mean: Tensor, divisors: Tensor | None) -> Tensor:
    """Returns the 7 numbers (float64) that a matrix adds to the sums over all matrices. g (`gradient`) is the gradient
    of a part of the samples, m (`mean`) that of the others.

    For sign descent and for Muon these are the noise |g - m|* and the signal <g, d>, with the unit step d along m. For
    AdamW they are |g - m|^2, <g, m> and |m|^2 in the product <x, y> = sum x_i y_i / divisor_i, or zeros without
    divisors.
    """
    noise = gradient - mean
    with torch.autocast(gradient.device.type, enabled=False):
        pairs = [
            (noise, noise.sign()), (gradient, mean.sign()),
            (noise, _orthogonal_factor(noise)), (gradient, _orthogonal_factor(mean)),
        ]  # fmt: skip
        if divisors is not None:
            pairs += [(noise, noise / divisors), (gradient, mean / divisors), (mean, mean / divisors)]
    sums = torch.stack([(one * other).sum(dtype=torch.float64) for one, other in pairs])
    return sums if divisors is not None else torch.cat([sums, sums.new_zeros(3)])


def _orthogonal_factor(matrix: Tensor) -> Tensor:
    """Returns the matrix with the same singular vectors and with all singular values equal to 1, except values that are
    tiny relative to the largest one."""
    is_tall = matrix.shape[0] > matrix.shape[1]
    x = matrix / matrix.norm().clamp_min(1e-30)
    x = x.T if is_tall else x
    for a, b, c in _POLYNOMIALS:
        square = x @ x.T
        x = torch.addmm(x, torch.addmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return x.T if is_tall else x
