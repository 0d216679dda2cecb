"""Detects impossible norms before any advice is based on them.

Let G be the true gradient, S the noise of a sample, and b and B = r b the samples of the two gradients of a step. By
theory the squared norm s of the small batch's gradient has the expectation E[s] = |G|^2 + S/b, and the squared norm L
of the large batch's gradient has E[L] = |G|^2 + S/B. So neither E[s - L] nor E[r L - s] is negative, for any G and S.
E[s/L - 1] is not negative either: the small batch is one of r equivalent small batches, and in every single step the
mean of their squared norms is at least L.

Steps are tested in blocks. Blocks of 16 steps are tested by Student's t, then joined in pairs to blocks of 32, 64 and
so on. A mistake that is slight or hidden by noise is thus found later. Blocks of 16 x 2^k steps are tested at a
probability of 1.6e-6 x 2^k / 28. In the worst case, with an expectation of exactly zero, normally distributed means
give one false alarm in 100 jobs of 100,000 steps. Large factors, such as an unreported loss scale, are detected by
counting steps with s > 10 r L: even with noise in a single dimension, which spreads most, only 15 % of the steps are
such. bench/adviser/README.md says which mistakes are detected and when.
"""

from __future__ import annotations

import math

BLOCK = 16  # steps
SAME = 1e-4  # relative
FAR, MOST_FAR = 10.0, 12  # a factor on r L, and in how many steps of a block s may exceed that
TOLERANCE = 0.01  # relative: differences by rounding are allowed
# The least t of blocks of 16, 32, 64 ... steps.
LEAST_T = (-9.39, -6.59, -5.62, -5.16, -4.88, -4.68, -4.51, -4.34, -4.18, -4.02, -3.85, -3.68, -3.5, -3.31)


class InputChecks:
    """Checks the norms of every step. `objection` says what is wrong with the norms; it is "" while nothing is wrong.

    An objection from a block of steps holds until a block of the same length has none. Norms from before an objection
    are not used again.
    """

    def __init__(self) -> None:
        self._objections: dict[str, tuple[int, str]] = {}  # by kind: how many steps had to show it, and what it says
        self._norms: list[float] = []
        self._small_norms: list[float] = []
        self._unit = 0.0  # a typical L: that of the steps before a block
        self._begin_block()
        self._wider: list[_Sums | None] = [None] * len(LEAST_T)  # a block of each length that waits for the next one

    @property
    def objection(self) -> str:
        return next((text for _, text in self._objections.values()), "")

    def observe(
        self, norm: float, samples: int, small_batch: float | None = None, small_squared_norm: float | None = None
    ) -> None:
        if not math.isfinite(norm):
            return
        self._norms.append(norm)
        if len(self._norms) == BLOCK:
            self._look_for_clipped_norms()
        if small_batch is None or small_squared_norm is None or not math.isfinite(small_squared_norm):
            return
        # A constant under accumulation: what has been added to p.grad, whatever the number of micro-batches.
        self._small_norms.append(math.sqrt(small_squared_norm) * small_batch / samples)
        if len(self._small_norms) == BLOCK:
            self._look_for_clipped_gradients()
        if norm > 0:
            self._add(small_squared_norm, norm * norm, norm * norm * samples / small_batch)

    def _look_for_clipped_norms(self) -> None:
        norms, self._norms = self._norms, []
        self._conclude(
            "norms", BLOCK, f"step was given the same norm, {max(norms):.6g}, in most of {BLOCK} steps, so it seems to be "
            "that after clipping; expected that before clipping, which clip_grad_norm_ returns" if _pile_up(norms) else ""
        )  # fmt: skip

    def _look_for_clipped_gradients(self) -> None:
        norms, self._small_norms = self._small_norms, []
        self._conclude(
            "small norms", BLOCK, f"the gradient at first_micro_batch had the same norm in most of {BLOCK} steps, so it "
            "seems to have been clipped; call first_micro_batch before anything changes the gradients"
            if _pile_up(norms) else ""
        )  # fmt: skip

    def _conclude(self, kind: str, steps: int, text: str) -> bool:
        """Records the objection of a block of this many steps. If the block has no objection, withdraws the earlier
        objection of this kind, unless that objection came from a longer block."""
        if text:
            self._objections[kind] = steps, text
        elif kind in self._objections and steps >= self._objections[kind][0]:
            del self._objections[kind]
        return bool(text)

    def _begin_block(self) -> None:
        self._steps = self._far = 0
        self._short = self._short_squared = self._long = self._long_squared = 0.0
        self._small = self._large = self._most = 0.0

    def _add(self, small: float, large: float, most: float) -> None:
        if self._unit == 0.0:
            self._unit = large  # the unit must not depend on the values that it divides
            return
        short, long = small / large - 1, (most - small) / self._unit
        self._steps += 1
        self._short += short
        self._short_squared += short * short
        self._long += long
        self._long_squared += long * long
        self._small += small
        self._large += large
        self._most += most
        self._far += small > FAR * most
        if self._steps == BLOCK:
            self._look_at_block()

    def _look_at_block(self) -> None:
        block = _Sums(self._short, self._short_squared, self._long, self._long_squared, self._small, self._large, self._most)
        is_far = self._far > MOST_FAR
        self._unit = self._large / BLOCK
        self._begin_block()
        for level, least_t in enumerate(LEAST_T):
            steps = BLOCK << level
            is_wrong = (is_far and level == 0) or block.is_impossible(steps, least_t)
            if self._conclude("ratio", steps, block.objection(steps) if is_wrong else ""):
                self._wider = [None] * len(LEAST_T)
                return
            waiting, self._wider[level] = self._wider[level], None
            if waiting is None:
                self._wider[level] = block
                return
            block = block.joined(waiting)


class _Sums:
    """Sums over the steps of a block: s/L - 1 and r L - s with their squares, s, L and r L."""

    def __init__(self, *sums: float):
        self.sums = sums

    def joined(self, other: _Sums) -> _Sums:
        return _Sums(*(a + b for a, b in zip(self.sums, other.sums)))

    def is_impossible(self, steps: int, least_t: float) -> bool:
        short, short_squared, long, long_squared, small, large, most = self.sums
        is_too_small = small < (1 - TOLERANCE) * large and _t(steps, short, short_squared) < least_t
        is_too_large = small > (1 + TOLERANCE) * most and _t(steps, long, long_squared) < least_t
        return is_too_small or is_too_large

    def objection(self, steps: int) -> str:
        *_, small, large, most = self.sums
        return (
            f"the first micro-batch's squared norm is {small / large:.3g} times that of the whole step on average of "
            f"{steps} steps, where 1 to {most / large:.3g} is possible. See whether `samples` is right in both calls, the "
            "norm of the same parameters, the gradient zero before the step, and, with a gradient scaler, loss_scale= "
            "given and the gradient unscaled before its norm is taken"
        )


def _t(steps: int, total: float, squares: float) -> float:
    """Student's t of the mean."""
    mean = total / steps
    variance = (squares - total * mean) / (steps - 1)
    if variance <= 1e-15 * squares / steps:  # no more than rounding
        return math.copysign(math.inf, mean) if mean else 0.0
    return mean / math.sqrt(variance / steps)


def _pile_up(norms: list[float]) -> bool:
    """Whether most norms equal the largest norm. Gradients that differ have different norms."""
    largest = max(norms)
    return largest > 0 and 2 * sum(norm >= largest * (1 - SAME) for norm in norms) > BLOCK
