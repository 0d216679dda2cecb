"""Measures the statistical efficiency of batches for a model that another program trains: `copus calibrate` for your
own training function.

You provide a checkpoint and a function that trains from it with another batch and learning rate and returns the
held-out loss. Branches of the reference batch over several lengths form a ladder. The ladder converts the loss of any
other branch into the number of samples with which the reference batch reaches that loss. These numbers give c in
critical batch = c x noise scale. The branches are the same as in `copus calibrate`.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import pathlib
import time
from collections.abc import Callable

from copus import _core

# A branch has at least as many updates as an optimizer's averages need.
_MULTIPLES = (2, 4, 8)
_FEWEST_UPDATES = 32

# The branches in the reference batch form a ladder. These are their lengths (the rungs), in units of an eighth of the
# branch in the largest batch. Each branch in other batches is as long as one of the rungs. The highest rung is longer
# than all other branches. So their losses lie within the ladder even if noise makes a batch appear more efficient than
# the reference batch.
_RUNGS = (1, 2, 4, 8, 12)

_NEEDED_REPETITIONS, _MOST_REPETITIONS = 2, 8


@dataclasses.dataclass(frozen=True)
class Branch:
    batch: int  # sequences
    rate_exponent: float  # e of the learning rate's factor (batch / reference batch)^e
    samples: int  # sequences that it reads
    repetition: int  # branches are compared with the ladder of their own repetition

    def learning_rate_factor(self, reference_batch: int) -> float:
        return (self.batch / reference_batch) ** self.rate_exponent


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A value with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclasses.dataclass(frozen=True)
class Calibration:
    calibration: Estimate  # critical batch / noise scale, with alpha as given
    free_calibration: Estimate  # the same and alpha, fitted together
    free_alpha: Estimate
    deviation: float  # root mean square of the fit's residuals of ln(efficiency)
    rate_exponent: Estimate | None  # the best one, with those that are not significantly worse; None: too few branches
    branches: int
    outside: int  # branches whose loss is beyond the ladder or not finite: they have no measured efficiency
    reference_batch: int
    noise_scale: float
    consumed_samples: int
    alpha: float
    critical_updates: float


def plan_branches(reference_batch: int, repetitions: int = _MOST_REPETITIONS) -> list[Branch]:
    """The branches, ordered so that a calibration that stops early is as precise as possible."""
    largest = _samples_at(_MULTIPLES[-1], reference_batch)
    branches = []

    def add_all(exponent: float, repetition: int) -> None:
        for multiple in _MULTIPLES:
            samples = _samples_at(multiple, reference_batch)
            branches.append(Branch(multiple * reference_batch, exponent, samples, repetition))

    def add_ladder_and_root(repetition: int) -> None:
        for rung in _RUNGS:
            branches.append(Branch(reference_batch, 0.5, largest * rung // _MULTIPLES[-1], repetition))
        add_all(0.5, repetition)

    for repetition in range(min(_NEEDED_REPETITIONS, repetitions)):
        add_ladder_and_root(repetition)
    for repetition in range(repetitions):
        if repetition >= _NEEDED_REPETITIONS:
            add_ladder_and_root(repetition)
        for exponent in (0.25, 0.0):
            add_all(exponent, repetition)
    return branches


def samples_per_repetition(reference_batch: int) -> int:
    """Sequences of the longest branch. Repetitions that begin this many sequences apart share none."""
    return _samples_at(_MULTIPLES[-1], reference_batch) * _RUNGS[-1] // _MULTIPLES[-1]


def calibrate(branch: Callable[[int, float, int, int], float], *, reference_batch: int, noise_scale: float,
              consumed_samples: int, file: str | os.PathLike[str], repetitions: int = _MOST_REPETITIONS,
              seconds: float = math.inf, alpha: float = 0.0, updates: float = 0.0,
              report: Callable[[str], None] = print) -> Calibration:
    """Runs branches and fits their results.

    branch(batch, learning_rate_factor, samples, repetition) loads weights and optimizer state of the checkpoint, trains
    on the next `samples` sequences in batches of `batch`, and returns the held-out loss. The learning rate is constant:
    the rate of the reference batch times the factor. All branches of a repetition read the same sequences from the
    first on. Each repetition begins `samples_per_repetition(reference_batch)` sequences after the previous one.

    noise_scale and consumed_samples are the values at the checkpoint, in sequences. `file` gets one JSON line for each
    finished branch, so the same call resumes an interrupted calibration. `seconds` limits this call: after the first 16
    branches, which an interval needs, no branch begins that would end later. `alpha` and `updates` are the run's
    adapt.alpha and noise_scale.critical_updates. Call this in one process; `branch` may start a distributed job.

    Raises ValueError for invalid arguments, if `file` belongs to another calibration, or if nothing can be fitted, and
    OSError if `file` cannot be written.
    """
    if reference_batch < 1 or not noise_scale > 0 or repetitions < _NEEDED_REPETITIONS:
        raise ValueError(f"reference_batch is {reference_batch}, noise_scale {noise_scale} and repetitions "
                         f"{repetitions}: expected a batch of at least 1, a noise scale above 0 and at "
                         f"least {_NEEDED_REPETITIONS} repetitions")
    planned = plan_branches(reference_batch, repetitions)
    needed = _NEEDED_REPETITIONS * (len(_RUNGS) + len(_MULTIPLES))
    path = pathlib.Path(file)
    done = _read(path, planned)
    begin, trained = time.monotonic(), 0
    with path.open("a", encoding="utf-8") as lines:
        for number, planned_branch in enumerate(planned):
            if planned_branch in done:
                continue
            spent = time.monotonic() - begin
            predicted = planned_branch.samples * spent / trained if trained else 0.0
            if number >= needed and spent + predicted > seconds:
                break
            factor = planned_branch.learning_rate_factor(reference_batch)
            loss = float(branch(planned_branch.batch, factor, planned_branch.samples, planned_branch.repetition))
            trained += planned_branch.samples
            done[planned_branch] = loss
            line = dataclasses.asdict(planned_branch) | {"loss": loss if math.isfinite(loss) else None}
            lines.write(json.dumps(line) + "\n")
            lines.flush()
            os.fsync(lines.fileno())
            report(f"copus: {len(done)} of {len(planned)} branches: batch {planned_branch.batch}, learning rate x "
                   f"{factor:.3g}, {planned_branch.samples} sequences: held-out loss {loss:.6g}")
    outcomes = [dataclasses.asdict(known) | {"loss": loss} for known, loss in done.items()]
    fit = _core.fit_calibration(outcomes, reference_batch=reference_batch, noise_scale=noise_scale,
                                consumed_samples=consumed_samples, updates=updates, alpha=alpha)
    if fit is None:
        raise ValueError(f"nothing can be fitted to the {len(done)} branches in {path}: too many ended beyond the "
                         "losses of the reference batch. The learning rate may be too high: calibrate at a lower one, "
                         "in another file")
    best_exponent = _core.best_rate_exponent(outcomes, reference_batch=reference_batch)
    return Calibration(calibration=Estimate(**fit["calibration"]), free_calibration=Estimate(**fit["free_calibration"]),
                       free_alpha=Estimate(**fit["free_alpha"]), deviation=fit["deviation"],
                       rate_exponent=Estimate(**best_exponent) if best_exponent else None, branches=len(done),
                       outside=fit["outside"], reference_batch=reference_batch, noise_scale=noise_scale,
                       consumed_samples=consumed_samples, alpha=alpha, critical_updates=updates)


def _samples_at(multiple: int, reference_batch: int) -> int:
    """Returns the samples of a branch. Branches of smaller batches have half as many samples as a branch of the largest
    batch, to save time. They still have at least as many updates."""
    return _FEWEST_UPDATES * max(multiple, _MULTIPLES[-1] // 2) * reference_batch


def _read(path: pathlib.Path, planned: list[Branch]) -> dict[Branch, float]:
    """Returns the finished branches, then removes a last line that an interrupted call left without a line end.

    Raises ValueError, and changes nothing, if the file is not of this calibration.
    """
    if not path.exists():
        return {}
    content = path.read_bytes()
    end = content.rfind(b"\n") + 1
    known, done = set(planned), {}
    for number, line in enumerate(content[:end].split(b"\n")[:-1], start=1):
        try:
            fields = json.loads(line)
            loss = fields.pop("loss")
            branch = Branch(**fields)
            hash(branch)  # raises TypeError for a list
            loss = math.nan if loss is None else float(loss)
        except (ValueError, TypeError, KeyError, AttributeError):
            raise ValueError(f"{path}:{number} is no branch of a calibration: {line[:80]!r}. Give `file` a path of its "
                             "own") from None
        if branch not in known:
            raise ValueError(f"{path}:{number} is a branch of another calibration (batch {branch.batch}, "
                             f"{branch.samples} sequences): give each reference batch, checkpoint and learning rate a "
                             "file of its own")
        done[branch] = loss
    rest, beginning = content[end:].strip(b"\0"), b'{"batch": '  # after a power failure a file may end in zeros
    if not (rest.startswith(beginning) or beginning.startswith(rest)):
        raise ValueError(f"{path}: its last line is no branch of a calibration. Give `file` a path of its own")
    if end < len(content):
        os.truncate(path, end)
    return done
