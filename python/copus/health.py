"""Keeps the reasons why the adviser cannot measure. Each reason is reported once, holds until steps are sound again,
and never ends the job."""

from __future__ import annotations

import collections
import logging
import warnings

STEPS = 16  # that are looked back on
_LOGGER = logging.getLogger("copus.adviser")


class AdviserWarning(UserWarning):
    """Something prevents the adviser from measuring, or makes its numbers wrong. Each reason is reported once."""


def say(message: str) -> None:
    """Reports through `warnings` and `logging`. If warnings are errors, reports only through the log, so that the job
    does not end here."""
    _LOGGER.warning(message)
    try:
        warnings.warn(message, AdviserWarning, stacklevel=2)
    except Warning:
        pass


class Health:
    """Decides whether the measurements can be trusted. `reason` states why not, and is None if they can.

    `found` sets the reason, which holds until STEPS sound steps in a row have passed. `noted` is for a fault that a
    sound job may have in a few steps, such as the short last step of an epoch. If most of the last STEPS steps have the
    same fault, the caller passes it to `found`. The reason that `stop` sets holds forever.
    """

    def __init__(self) -> None:
        self.reason: str | None = None
        self.is_stopped = False
        self._said: set[str] = set()
        self._noted: collections.deque[str | None] = collections.deque(maxlen=STEPS)
        self._sound_steps = 0

    def found(self, key: str, reason: str) -> bool:
        """Returns whether the reason is new and must be reported."""
        self._sound_steps = 0
        if not self.is_stopped:
            self.reason = reason
        is_news = key not in self._said
        self._said.add(key)
        return is_news

    def noted(self, key: str) -> bool:
        """Returns whether most of the latest steps have the reason."""
        self._sound_steps = 0
        self._noted.append(key)
        return 2 * self._noted.count(key) > STEPS

    def sound(self) -> None:
        """Records that a step was measured and nothing is wrong with it."""
        self._noted.append(None)
        self._sound_steps += 1
        if self._sound_steps >= STEPS and not self.is_stopped:
            self.reason = None

    def stop(self, reason: str) -> None:
        self.reason, self.is_stopped = reason, True
