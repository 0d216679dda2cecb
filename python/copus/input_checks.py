"""Notices norms that cannot be what they should be, before advice is built on them.

With true gradient G, noise S of a sample and gradients of b and B samples of a step, theory has |G|^2 + S/b for the
expected squared norm s of the small one, and |G|^2 + S/B for that of the large one, L. So neither E[s - L] nor
E[L B/b - s] is negative, whatever G and S are. Each difference is tested by Student's t over the latest steps, which a few
long gradients cannot bring far from 0. How often that is a false alarm, and what it notices: bench/adviser/README.md.
"""

from __future__ import annotations

import collections
import math

WINDOW = 16  # steps in which clipped norms pile up
SAME = 1e-4  # relative
TESTS = ((16, -5.0), (32, -4.5))  # steps, and the least t that they may have
TOLERANCE = 0.01  # relative: rounding is no mistake


class InputChecks:
    """Looks at the norms of the latest steps. `objection` says what is wrong with them, "" while nothing is."""

    def __init__(self) -> None:
        self._norms: collections.deque[float] = collections.deque(maxlen=WINDOW)
        self._small: collections.deque[float] = collections.deque(maxlen=WINDOW)
        # Squared norms of the small and the whole batch, and how many times as large that is.
        self._pairs: collections.deque[tuple[float, float, float]] = collections.deque(maxlen=max(steps for steps, _ in TESTS))

    def observe(
        self, norm: float, samples: int, small_batch: float | None = None, small_squared_norm: float | None = None
    ) -> None:
        if not math.isfinite(norm):
            return
        self._norms.append(norm)
        if small_batch is not None and small_squared_norm is not None and math.isfinite(small_squared_norm):
            # A constant under accumulation: what has been added to p.grad, whatever the number of micro-batches.
            self._small.append(math.sqrt(small_squared_norm) * small_batch / samples)
            if norm > 0:
                self._pairs.append((small_squared_norm, norm**2, samples / small_batch))

    def objection(self) -> str:
        if _pile_up(self._norms):
            return (
                f"step was given the same norm, {max(self._norms):.6g}, in most of the last {WINDOW} steps, so it "
                "seems to be that after clipping; expected that before clipping, which clip_grad_norm_ returns"
            )
        if _pile_up(self._small):
            return (
                f"the gradient at first_micro_batch had the same norm in most of the last {WINDOW} steps, so it seems "
                "to have been clipped; call first_micro_batch before anything changes the gradients"
            )
        return self._impossible_ratio()

    def _impossible_ratio(self) -> str:
        for steps, least_t in TESTS:
            pairs = list(self._pairs)[-steps:]
            if len(pairs) == steps and (objection := _impossible_ratio(pairs, least_t)):
                return objection
        return ""


def _impossible_ratio(pairs: list[tuple[float, float, float]], least_t: float) -> str:
    small, large = (sum(pair[index] for pair in pairs) for index in (0, 1))
    most = sum(pair[1] * pair[2] for pair in pairs)
    is_too_small = small < (1 - TOLERANCE) * large and _t([pair[0] - pair[1] for pair in pairs]) < least_t
    is_too_large = small > (1 + TOLERANCE) * most and _t([pair[1] * pair[2] - pair[0] for pair in pairs]) < least_t
    if not (is_too_small or is_too_large):
        return ""
    return (
        f"the first micro-batch's squared norm is {small / large:.3g} times that of the whole step on average, where "
        f"1 to {most / large:.3g} is possible. See whether `samples` is right in both calls, the norm of the same "
        "parameters, the gradient zero before the step, and, with a gradient scaler, loss_scale= given and the "
        "gradient unscaled before its norm is taken"
    )


def _t(values: list[float]) -> float:
    """Student's t of the mean."""
    mean = sum(values) / len(values)
    variance = sum((value - mean) ** 2 for value in values) / (len(values) - 1)
    if variance == 0:
        return math.copysign(math.inf, mean) if mean else 0.0
    return mean / math.sqrt(variance / len(values))


def _pile_up(norms: collections.deque[float]) -> bool:
    """Whether most norms are the largest of them. Gradients that differ have norms that do."""
    if len(norms) < WINDOW:
        return False
    largest = max(norms)
    return largest > 0 and 2 * sum(norm >= largest * (1 - SAME) for norm in norms) > WINDOW
