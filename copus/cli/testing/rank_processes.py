"""For tests: the processes of a job's ranks, as found in the system."""

import os
import pathlib
import re
import time

DEADLINE = 120  # seconds, far more than a job takes to start


def children(pid):
    try:
        return [int(child) for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def rank_of(pid, variable="COPUS_RANK"):
    """Returns the rank of a process of a job; None for other processes and for one that has ended. Other launchers use
    other variables."""
    try:
        variables = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    name = variable.encode() + b"="
    return next((int(line.split(b"=")[1]) for line in variables if line.startswith(name)), None)


def is_gone(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][0] in "ZX"
    except OSError:
        return True


def ranks_of(launcher, count, lives, variable="COPUS_RANK"):
    """Returns the processes of a job by rank, once there are `count`; None if the launcher ends before."""
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline and lives():
        ranks = {rank_of(pid, variable): pid for pid in children(launcher) if not is_gone(pid)}
        if set(ranks) >= set(range(count)):
            return {rank: ranks[rank] for rank in range(count)}
        time.sleep(0.005)
    return None


class Places:
    """The current places of a job's ranks, read from the memory in which they publish them."""

    HEALTH_BYTES = 16384  # the beginning of the segment: the states of all ranks

    def __init__(self, pid):
        self.memory, self.address = None, None
        maps = pathlib.Path(f"/proc/{pid}/maps").read_text()
        found = re.search(r"^([0-9a-f]+)-[0-9a-f]+ .*/memfd:copus \(deleted\)$", maps, re.MULTILINE)
        if found:
            self.address = int(found.group(1), 16)
            self.memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY)

    def read(self):
        """Returns that memory as bytes; nothing for a rank that has ended or has not joined yet."""
        try:
            return b"" if self.memory is None else os.pread(self.memory, self.HEALTH_BYTES, self.address)
        except OSError:
            return b""

    def switching(self):
        """Returns every (step, phase) where a rank is or was recently."""
        return set(re.findall(rb"switching after step (\d+): ([a-z ]+)", self.read()))

    def steps_with(self, words):
        """Returns the steps after which a rank is, or recently was, at a place with these words."""
        return {int(step) for step in re.findall(words.encode() + rb" after step (\d+)", self.read())}

    def close(self):
        if self.memory is not None:
            os.close(self.memory)
