"""The adviser's advice."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Advice:
    """Another batch, its expected gain, and the reason. All ranks get the same advice, except that only rank 0 gets the
    reason.

    Batches and noise scales are in sequences. Gains are relative: 0.1 means a tenth more progress per second.
    """

    batch: int  # sequences of a step, over all ranks
    micro_batches: int  # of each rank in such a step
    learning_rate_factor: float  # multiply by this the schedule's rate, which is for reference_batch
    gain: float
    gain_low: float | None  # 95 % interval, from the uncertainty of the noise scale and of step times
    gain_high: float | None
    noise_scale: float | None  # None while noise hides the signal: then only the low end is known
    noise_scale_low: float | None
    noise_scale_high: float | None
    critical_batch: float | None
    reason: str  # "" on ranks other than 0
    step: int  # the logged step that the advice is based on; the log begins with the first measured step

    def __str__(self) -> str:
        gain = f"{self.gain * 100:+.0f} %{_interval(self.gain_low, self.gain_high, 100)} progress by the second"
        noise = "unknown" if self.noise_scale is None else f"{self.noise_scale:.3g}"
        return (
            f"take batch {self.batch} ({self.micro_batches} micro-batches a rank), learning rate x "
            f"{self.learning_rate_factor:.3g}: {gain}; noise scale {noise}"
            f"{_interval(self.noise_scale_low, self.noise_scale_high)}" + (f"; {self.reason}" if self.reason else "")
        )


def _interval(low: float | None, high: float | None, factor: float = 1) -> str:
    if low is None and high is None:
        return ""
    return f" ({_end(low, factor)} .. {_end(high, factor)})"


def _end(value: float | None, factor: float) -> str:
    return "?" if value is None else f"{value * factor:.3g}"
