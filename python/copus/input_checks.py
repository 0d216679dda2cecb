"""Notices numbers that cannot be what they should be, before advice is built on them."""

from __future__ import annotations

import collections
import math
import statistics

WINDOW = 16  # steps
SAME = 1e-4  # relative


class InputChecks:
    """Looks at the norms of the latest steps. `objection` says what is wrong with them, "" while nothing is."""

    def __init__(self) -> None:
        self._norms: collections.deque[float] = collections.deque(maxlen=WINDOW)
        self._small: collections.deque[float] = collections.deque(maxlen=WINDOW)
        self._ratios: collections.deque[tuple[float, float]] = collections.deque(maxlen=WINDOW)  # and their largest

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
                self._ratios.append((small_squared_norm / norm**2, samples / small_batch))

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
        if len(self._ratios) == WINDOW:
            # In expectation |G|^2 + S/B <= |G|^2 + S/b <= (B/b) (|G|^2 + S/B). The median, since a single sequence with
            # a gradient many times longer than others' decides a mean.
            ratio, largest = (statistics.median(values) for values in zip(*self._ratios))
            if ratio < 0.7 or ratio > 1.5 * largest:
                return (
                    f"the first micro-batch's squared norm is {ratio:.3g} times that of the whole step in the median, "
                    f"where 1 to {largest:.3g} is possible: is `samples` right in both calls, and, with a "
                    "gradient scaler, loss_scale= given and the gradient unscaled before its norm is taken? Does the "
                    "norm cover the same parameters?"
                )
        return ""


def _pile_up(norms: collections.deque[float]) -> bool:
    """Whether most norms are the largest of them. Gradients that differ have norms that do."""
    if len(norms) < WINDOW:
        return False
    largest = max(norms)
    return largest > 0 and 2 * sum(norm >= largest * (1 - SAME) for norm in norms) > WINDOW
