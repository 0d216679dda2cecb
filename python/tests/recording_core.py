"""Stands in for copus._core.Adviser: records what the Python side tells it, and advises what a test says."""

from __future__ import annotations

import contextlib
from unittest import mock

import copus.adviser


class RecordingCore:
    def __init__(self, settings, directory=None, after_step=None, state=None):
        self.settings, self.directory, self.given_state = settings, directory, state
        self.steps: list[dict] = []
        self.forgotten = 0
        self.notes: list[str] = []
        made.append(self)

    def step(self, samples, seconds, norm, small_batch=None, small_squared_norm=None, lr=None, loss=None, tokens=None):
        self.steps.append(
            {"samples": samples, "seconds": seconds, "norm": norm, "small_batch": small_batch,
             "small_squared_norm": small_squared_norm, "lr": lr, "loss": loss, "loss_tokens": tokens}
        )  # fmt: skip
        if len(self.steps) not in advises_after:
            return None
        return {"step": len(self.steps), "batch": 2 * samples, "micro_batches": 4, "learning_rate_factor": 1.5,
                "gain": 0.25, "gain_low": 0.125, "gain_high": None, "noise_scale": 100.0, "noise_scale_low": 50.0,
                "noise_scale_high": None, "critical_batch": 200.0, "reason": "because"}  # fmt: skip

    def noise(self):
        return None

    def forget_noise(self):
        self.forgotten += 1

    def state(self):
        return f"state after {len(self.steps)}"

    def close(self):
        pass


made: list[RecordingCore] = []
advises_after: set[int] = set()


@contextlib.contextmanager
def recording():
    """Within it every adviser has such a core; yields the list of them."""
    made.clear()
    advises_after.clear()
    with mock.patch.object(copus.adviser._core, "Adviser", RecordingCore):
        yield made
