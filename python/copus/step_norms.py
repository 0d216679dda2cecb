"""Combines a step's calls on all ranks: its samples, and the squared norm of the gradients of fewer samples."""

from __future__ import annotations

import math
from typing import NamedTuple

from copus.gradient_norms import Layout

UNKNOWN = float("nan")
SOUND, MISTAKEN, STOPPED = 0.0, 1.0, 2.0  # a rank's condition


class Row(NamedTuple):
    """A rank's report about a step. NaN: it has nothing to report."""

    condition: float = SOUND
    samples: float = UNKNOWN  # of the step over all ranks, as counted by this rank
    seconds: float = UNKNOWN
    small_samples: float = UNKNOWN  # of this rank's first micro-batch
    small_share: float = UNKNOWN  # of its gradient's squared norm
    passes_before: float = UNKNOWN  # backward passes up to and including that one
    passes: float = UNKNOWN  # and in the whole step; 0 where they cannot be counted
    norm: float = UNKNOWN  # of the whole gradient, or
    norm_share: float = UNKNOWN  # this rank's share of its square
    watched_share: float = UNKNOWN
    watched_passes: float = UNKNOWN
    elements: float = UNKNOWN  # of the parameters
    left_out: float = 0.0  # 1 where an integration knows that the step's micro-batches differ
    loss: float = UNKNOWN
    changed: float = 0.0  # 1 if other parameters had gradients in the previous step
    advice: tuple[float, ...] = ()

    def numbers(self) -> list[float]:
        return [*self[:-1], *self.advice]

    @classmethod
    def of(cls, numbers: list[float]) -> Row:
        fields = len(cls._fields) - 1
        return cls(*numbers[:fields], advice=tuple(numbers[fields:]))


class Small(NamedTuple):
    """The mean squared norm of gradients of this many sequences, without any other factor."""

    batch: float
    squared_norm: float


class Problem(NamedTuple):
    """The reason why a step is not measured. With `can_happen`, single steps of a sound job may have the problem, so it
    is reported only if most steps have it."""

    key: str
    reason: str
    can_happen: bool = False


class StepNorms(NamedTuple):
    samples: int
    norm: float
    small: Small | None
    problem: Problem | None


def put_together(rows: list[Row], layout: Layout, is_weighted: bool, watched_micro_batches: int) -> StepNorms:
    """Combines the rows of all ranks.

    `is_weighted`: the loss weights every sample of the step equally, whatever micro-batch or rank it is in.
    """
    samples = round(sum(row.samples for row in rows) / len(rows))
    if math.isnan(rows[0].norm_share):
        norm = next((row.norm for row in rows if not math.isfinite(row.norm)), rows[0].norm)
    else:
        norm = math.sqrt(sum(row.norm_share for row in rows))
    problem = _different_calls(rows, layout) if len(rows) > 1 else None
    if problem is None and not (math.isfinite(norm) and norm > 0):
        problem = _useless_norm(norm)
    if any(row.left_out for row in rows):
        problem = _uneven("the step's micro-batches differ")
    if problem is not None:
        return StepNorms(samples, norm, None, problem)
    first, problem_of_first = _first_micro_batch(rows, samples, layout, is_weighted)
    watched, problem_of_watch = _watched(rows, samples, layout, is_weighted, watched_micro_batches)
    found = [small for small in (first, watched) if small is not None]
    if found:
        return StepNorms(samples, norm, min(found), None)
    return StepNorms(samples, norm, None, problem_of_first or problem_of_watch or _nothing_smaller())


def same(a: float, b: float, tolerance: float = 0.0) -> bool:
    return a == b or (math.isnan(a) and math.isnan(b)) or abs(a - b) <= tolerance * abs(b)


def _all_same(values: list[float], tolerance: float = 0.0) -> bool:
    return all(same(value, values[0], tolerance) for value in values)


def _different_calls(rows: list[Row], layout: Layout) -> Problem | None:
    def differ(name: str, what: str, tolerance: float = 0.0) -> Problem:
        values = [getattr(row, name) for row in rows]
        other = next(rank for rank, value in enumerate(values) if not same(value, values[0], tolerance))
        shown = ["none" if math.isnan(values[rank]) else f"{values[rank]:.9g}" for rank in (0, other)]
        return Problem(
            f"differ in {name}",
            f"the ranks differ in {what}: rank 0 has {shown[0]}, rank {other} has {shown[1]}; expected the same",
        )

    if len({math.isnan(row.small_samples) for row in rows}) > 1:
        return differ("small_samples", "whether they call first_micro_batch")
    elements = [row.elements for row in rows]
    if layout.pipeline_stages == 1 and not _all_same(elements):
        problem = differ("elements", "the numbers that their parameters hold")
        return problem._replace(
            reason=f"{problem.reason}. Stages of a pipeline need Adviser(pipeline_parallel=...); shards of another "
            "program's making are not supported"
        )
    norms = [row.norm for row in rows]
    if math.isnan(rows[0].norm_share) and all(map(math.isfinite, norms)) and not _all_same(norms, 1e-4):
        return differ("norm", "the norm, which has to be that of the whole gradient, over all ranks", 1e-4)
    return None


def _useless_norm(norm: float) -> Problem:
    if norm == 0:
        return Problem(
            "norm 0",
            "step is given a norm of 0, so it seems to be taken after zero_grad; expected that of the gradient "
            "before, which clip_grad_norm_ returns",
            can_happen=True,
        )
    return Problem(
        "norm not finite",
        f"step is given a norm that is not finite ({norm}); expected the gradient's before clipping. A gradient scaler "
        "has to unscale_ it first; where the gradients themselves are not finite, so is the training",
        can_happen=True,
    )


def _first_micro_batch(
    rows: list[Row], samples: int, layout: Layout, is_weighted: bool
) -> tuple[Small | None, Problem | None]:
    if math.isnan(rows[0].small_samples) or samples < 1:
        return None, None
    shares, sizes = [row.small_share for row in rows], [row.small_samples for row in rows]
    if not is_weighted:
        if not _all_same([row.samples for row in rows]) or not _all_same(sizes):
            return None, _uneven("the ranks differ in their samples")
        told = samples / layout.replicas / sizes[0]
        for row in rows if layout.pipeline_stages == 1 else ():
            # If backward passes can be counted, they give the number of micro-batches.
            if row.passes >= 1 and row.passes_before >= 1 and not same(row.passes / row.passes_before, told, 1e-9):
                return None, _uneven(
                    f"step is told of {samples} samples and first_micro_batch of {sizes[0]:.9g} on each of "
                    f"{layout.replicas} data-parallel ranks, which makes {told:.4g} micro-batches, and there were "
                    f"{row.passes / row.passes_before:.4g}, by the backward passes"
                )
    if _come_in_equal_groups(shares, layout.copies):  # reduced over all replicas
        batch = sum(sizes) * layout.replicas / len(sizes)
        small = Small(batch, sum(shares) * (samples / batch) ** 2)
    elif layout.shards == 1 or _all_same(sizes):
        replicas, shards = layout.replicas, layout.shards
        squared = sum(share * (samples / (size * replicas)) ** 2 for share, size in zip(shares, sizes))
        small = Small(shards * len(sizes) / sum(1 / size for size in sizes), squared)
    else:
        return None, _uneven("the ranks differ in their samples")
    return (small, None) if small.batch < samples and small.squared_norm > 0 else (None, None)


def _watched(
    rows: list[Row], samples: int, layout: Layout, is_weighted: bool, micro_batches: int
) -> tuple[Small | None, Problem | None]:
    passes = [row.watched_passes for row in rows]
    if all(map(math.isnan, passes)) or samples < 1:
        return None, None
    if any(each != micro_batches for each in passes):
        seen = next(each for each in passes if each != micro_batches)
        return None, Problem(
            "reductions",
            f"gradients were reduced {'in parts' if math.isnan(seen) else f'{seen:.0f} times'} in a step, and "
            f"Adviser.watch expects {micro_batches}: where a loss has several terms with a backward call each, add "
            "them up and call backward once; where gradients are reduced for each micro-batch, say "
            "watch(model, micro_batches=...)",
            can_happen=True,
        )
    shares = [row.watched_share * micro_batches**2 for row in rows]
    own = [row.samples / layout.replicas / micro_batches for row in rows]
    if _all_same(own):
        return Small(own[0], sum(shares)), None
    if not is_weighted or layout.shards > 1:
        return None, _uneven("the ranks differ in their samples")
    mean = samples / layout.replicas / micro_batches
    squared = sum(share * (mean / size) ** 2 for share, size in zip(shares, own))
    return Small(len(own) / sum(1 / size for size in own), squared), None


def _uneven(what: str) -> Problem:
    return Problem(
        "uneven",
        f"{what}: a loss that is divided by their number weighs samples of smaller ones more. Where the loss is a sum "
        "over the samples (or tokens) of the whole step divided by their number, say "
        "Adviser(weighted_by_samples=True); else make them even, or correct `samples`",
        can_happen=True,
    )


def _nothing_smaller() -> Problem:
    return Problem(
        "nothing smaller",
        "no gradient of a part of the batch could be measured. Needed is a batch smaller than the step's: two "
        "micro-batches at least, with first_micro_batch after the first, or several data-parallel ranks and "
        "adviser.watch(model); that also where FSDP2's set_requires_gradient_sync(False) leaves no gradient in p.grad",
        can_happen=True,
    )


def _come_in_equal_groups(shares: list[float], copies: int) -> bool:
    """Whether the copies of a gradient are equal: then every share occurs as often as there are copies."""
    ordered = sorted(shares)
    groups = (ordered[begin : begin + copies] for begin in range(0, len(ordered), copies))
    return all(group[-1] - group[0] <= 1e-7 * abs(group[-1]) for group in groups)
