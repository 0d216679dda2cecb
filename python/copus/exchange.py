"""Sends one small message from every rank to every rank per step. No rank waits for a message before the next step."""

from __future__ import annotations

import collections
import datetime
import itertools
import time
from typing import Any

import torch

from copus._core import UserError


def _all_gather(*given: Any, **named: Any) -> Any:
    """Calls PyTorch's all_gather_into_tensor, which newer versions call all_gather_single. A PyTorch without
    torch.distributed has neither, and needs none on one rank."""
    gather = getattr(torch.distributed, "all_gather_single", None) or torch.distributed.all_gather_into_tensor
    return gather(*given, **named)


_meetings = itertools.count()  # every rank makes its advisers in the same order
_SECONDS_TO_NAME_THE_MISSING = 2.0
_SECONDS_BETWEEN_LOOKS = 0.0002


class RanksMissing(UserError):
    """Ranks did not take part in time; the message names them."""


class Exchange:
    """Gathers a row of numbers from every rank, on the CPU, over separate Gloo connections.

    Neither the device's streams nor the trainer's collectives wait for this exchange. `send` returns at once. `receive`
    returns the rows that were sent before, oldest first, and waits at most `seconds` for the other ranks. Every rank
    must send the same number of rows, all of the same length.
    """

    def __init__(self, seconds: float):
        self.seconds = seconds
        self._sent: collections.deque[tuple[torch.distributed.Work, torch.Tensor, torch.Tensor]] = collections.deque()
        self._group = None
        self._met = 0
        # Kept because rows may be received after the job's process group is destroyed.
        self.ranks, self.rank = torch.distributed.get_world_size(), torch.distributed.get_rank()

    @property
    def is_connected(self) -> bool:
        return self._group is not None

    def connect(self) -> None:
        """Connects the ranks; each must call it within the deadline. Raises RanksMissing."""
        if self.is_connected:
            return
        self._name = f"copus/adviser/{next(_meetings)}"
        self._store = torch.distributed.distributed_c10d._get_default_store()
        missing = self._missing("begin", self.seconds)
        if missing:
            raise RanksMissing(
                f"Adviser.step: {_named(missing)} of {self.ranks} called no step within {self.seconds:g} s; every rank "
                "has to call first_micro_batch and step in every step"
            )
        self._group = torch.distributed.new_group(
            backend="gloo", timeout=datetime.timedelta(seconds=self.seconds), group_desc="copus adviser"
        )

    def send(self, row: list[float]) -> None:
        # On the CPU, whatever the program's default device is.
        mine = torch.tensor(row, dtype=torch.float64, device="cpu")
        rows = torch.empty(self.ranks * len(row), dtype=torch.float64, device="cpu")
        work = _all_gather(rows, mine, group=self._group, async_op=True)
        self._sent.append((work, rows, mine))

    def receive(self, seconds: float | None = None) -> list[list[list[float]]]:
        """Returns the rows of every rank, for each step that was sent. Raises RanksMissing.

        With `seconds`, returns the rows that have arrived by then and does not wait for late ranks.
        """
        received = []
        deadline = time.monotonic() + (self.seconds if seconds is None else seconds)
        while self._sent:
            work, rows, _ = self._sent[0]
            if not _is_done(work, deadline) and seconds is not None:
                break
            try:
                if not work.is_completed():
                    raise RuntimeError("its deadline has passed")
                work.wait()
            except RuntimeError as error:
                self._sent.clear()
                missing = self._missing(f"row {self._met}", _SECONDS_TO_NAME_THE_MISSING)
                raise RanksMissing(
                    f"Adviser.step: {_named(missing) if missing else 'a rank'} of {self.ranks} did not take part "
                    f"within {self.seconds:g} s, or has ended; every rank has to call step in every step ({error})"
                ) from error
            self._sent.popleft()
            self._met += 1
            received.append(rows.view(self.ranks, -1).tolist())
        return received

    def _missing(self, meeting: str, seconds: float) -> list[int]:
        """The ranks that do not reach a meeting in time."""
        self._store.set(f"{self._name}/{meeting}/{self.rank}", "here")
        keys = [f"{self._name}/{meeting}/{rank}" for rank in range(self.ranks)]
        deadline = time.monotonic() + seconds
        while not self._store.check(keys):
            if time.monotonic() > deadline:
                return [rank for rank, key in enumerate(keys) if not self._store.check([key])]
            time.sleep(0.01)
        return []


def _is_done(work: torch.distributed.Work, deadline: float) -> bool:
    while not work.is_completed():
        if time.monotonic() > deadline:
            return False
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    return True


def _named(ranks: list[int]) -> str:
    shown = ", ".join(str(rank) for rank in ranks[:8]) + (", ..." if len(ranks) > 8 else "")
    return ("rank " if len(ranks) == 1 else "ranks ") + shown
