"""What keeps the adviser from measuring: said once, kept until steps are sound again, and never the end of a job."""

from __future__ import annotations

import collections
import logging
import warnings

STEPS = 16  # that are looked back on
_LOGGER = logging.getLogger("copus.adviser")


class AdviserWarning(UserWarning):
    """Something that keeps the adviser from measuring, or its numbers from being right. Each is said once."""


def say(message: str) -> None:
    """Through `warnings` and `logging`. Where warnings are errors the log alone has it: nothing ends here."""
    _LOGGER.warning(message)
    try:
        warnings.warn(message, AdviserWarning, stacklevel=2)
    except Warning:
        pass


class Health:
    """Whether what is measured can be trusted. `reason` says why not, None while it can.

    A reason that was `found` holds until STEPS steps in a row were sound. One that was `noted` for single steps, which
    may happen in a sound job (a last step of an epoch that is short), is found when most of STEPS steps have it. After
    `stop` nothing is sound any more.
    """

    def __init__(self) -> None:
        self.reason: str | None = None
        self.is_stopped = False
        self._said: set[str] = set()
        self._noted: collections.deque[str | None] = collections.deque(maxlen=STEPS)
        self._sound_steps = 0

    def found(self, key: str, reason: str) -> bool:
        """Returns whether it is news, and so has to be said."""
        self._sound_steps = 0
        if not self.is_stopped:
            self.reason = reason
        is_news = key not in self._said
        self._said.add(key)
        return is_news

    def noted(self, key: str) -> bool:
        """Returns whether most of the latest steps have it."""
        self._sound_steps = 0
        self._noted.append(key)
        return 2 * self._noted.count(key) > STEPS

    def sound(self) -> None:
        """A step was measured, and nothing is wrong with it."""
        self._noted.append(None)
        self._sound_steps += 1
        if self._sound_steps >= STEPS and not self.is_stopped:
            self.reason = None

    def stop(self, reason: str) -> None:
        self.reason, self.is_stopped = reason, True
