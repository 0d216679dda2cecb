"""Batch schedules for trainers that can follow one but cannot decide: Megatron-LM, OLMo-core, Levanter.

A schedule comes from a run directory (its actual batches, or the advised ones) or from a list of advice:

    schedule = BatchSchedule.trained("runs/a")
    print(schedule.megatron())   # 0:512 1.3M:1024, for --step-batch-size-schedule

The trainers' formats come from their sources: Megatron-LM's StepBatchsizeNumMicroBatchesCalculator, OLMo-core's
BatchSizeSchedulerCallback and Levanter's BatchSchedule.
"""

from __future__ import annotations

import dataclasses
import json
import math
import pathlib
import tomllib
from collections.abc import Iterable, Iterator
from typing import Any

_UNITS = {"T": 10**12, "B": 10**9, "M": 10**6, "K": 10**3}

# With this many decimals a threshold is exact to the token for every suffix, with one digit to spare.
_MOST_DECIMALS = 13


@dataclasses.dataclass(frozen=True)
class BatchSchedule:
    """Batches, in sequences, each from a number of consumed sequences on. The first begins at 0."""

    pieces: tuple[tuple[int, int], ...]  # consumed sequences, batch
    sequence_length: int

    def __post_init__(self) -> None:
        if self.sequence_length < 1:
            raise ValueError(f"sequence_length is {self.sequence_length}, and a sequence has at least one token")
        merged: list[tuple[int, int]] = []
        for start, batch in self.pieces:
            if batch < 1:
                raise ValueError(f"a batch of {batch} from {start} consumed sequences on: batches are at least 1")
            if not merged and start != 0:
                raise ValueError(f"the first batch begins at {start} consumed sequences; a schedule begins at 0")
            if merged and start <= merged[-1][0]:
                raise ValueError(f"the batch of {batch} begins at {start} consumed sequences, which is not behind the "
                                 f"piece before it, at {merged[-1][0]}")
            if not merged or batch != merged[-1][1]:
                merged.append((start, batch))
        if not merged:
            raise ValueError("a schedule needs at least one batch")
        object.__setattr__(self, "pieces", tuple(merged))

    # Sources of schedules.

    @classmethod
    def trained(cls, directory: str | pathlib.Path) -> BatchSchedule:
        """Returns the batches with which the run in this directory was trained, from its run.jsonl.

        Raises ValueError if the directory has no step of a run.
        """
        pieces: list[tuple[int, int]] = []
        for record in _records(pathlib.Path(directory) / "run.jsonl"):
            batch = record["global_batch"]
            if not pieces or batch != pieces[-1][1]:
                # An incomplete part of an epoch was not counted; the first batch still begins at 0.
                pieces.append((record["consumed_samples"] - batch if pieces else 0, batch))
        if not pieces:
            raise ValueError(f"{directory}/run.jsonl holds no step of a run")
        return cls(tuple(pieces), _sequence_length(directory))

    @classmethod
    def advised(cls, directory: str | pathlib.Path) -> BatchSchedule:
        """Returns the batches that a run's decisions.jsonl advised, whether or not the run used them.

        Raises ValueError if decisions.jsonl contains no decisions.
        """
        pieces: list[tuple[int, int]] = []
        for event in _records(pathlib.Path(directory) / "decisions.jsonl"):
            if event["event"] == "begin" and not pieces:
                pieces.append((0, _batch_of(event["configuration"])))
            elif event["event"] == "decision" and pieces:  # without a target it says to stay
                start, batch = event["consumed_samples"], _batch_of(event["target"] or event["current"])
                if batch != pieces[-1][1] and start > pieces[-1][0]:
                    pieces.append((start, batch))
        if not pieces:
            raise ValueError(f"{directory}/decisions.jsonl holds no decisions of a run that adapts or is advised")
        return cls(tuple(pieces), _sequence_length(directory))

    @classmethod
    def of_advice(cls, advice: Iterable[Any], batch: int, sequence_length: int) -> BatchSchedule:
        """The schedule of a run that began with `batch` and followed each copus.Advice from the next step on."""
        pieces, step = [(0, batch)], 0
        for given in advice:
            start, current = pieces[-1]
            pieces.append((start + (given.step - step) * current, given.batch))
            step = given.step
        return cls(tuple(pieces), sequence_length)

    @classmethod
    def parse(cls, text: str, sequence_length: int) -> BatchSchedule:
        """Reads Megatron-LM's notation: thresholds are tokens, with or without a suffix K, M, B or T.

        Raises ValueError for other text, and if sequence_length is below 1.
        """
        if sequence_length < 1:
            raise ValueError(f"sequence_length is {sequence_length}; expected 1 or more tokens")
        pieces = []
        for piece in text.replace(",", " ").split():
            threshold, colon, batch = piece.partition(":")
            try:
                if not colon:
                    raise ValueError("there is no \":\"")
                pieces.append((_megatron_number(threshold) // sequence_length, _megatron_number(batch)))
            except ValueError as error:
                raise ValueError(f"\"{piece}\" is no THRESHOLD:BATCH such as 250B:1536: {error}") from None
        return cls(tuple(sorted(pieces)), sequence_length)

    # Formats of trainers.

    def megatron(self) -> str:
        """Returns the value for Megatron-LM's --step-batch-size-schedule, which adapt.schedule of Copus reads too.

        Thresholds are tokens with a suffix, because Copus reads a plain number as sequences. Megatron-LM also needs the
        length of the run in --train-samples. Leave its --global-batch-size at the default.
        """
        return " ".join(f"{self._tokens(start)}:{batch}" for start, batch in self.pieces)

    def olmo_core(self) -> dict[str, list[int]]:
        """Returns batches and the starts of their pieces, both in tokens, for OLMo-core's BatchSizeSchedulerCallback:

            given = schedule.olmo_core()
            BatchSizeSchedulerCallback(batch_sizes=given["batch_sizes"],
                                       schedule=[Duration.tokens(start) for start in given["starts"]])

        The callback itself multiplies the learning rate by the square root of the batch's ratio. Raises ValueError if a
        batch is neither a multiple nor a divisor of the previous batch, because the callback raises an error there.
        """
        for (_, before), (start, batch) in zip(self.pieces, self.pieces[1:]):
            if batch % before and before % batch:
                raise ValueError(f"OLMo-core changes a batch by whole factors alone, and at {start} consumed sequences "
                                 f"{before} becomes {batch}; allow Copus only multiples, for example by "
                                 "batches=[8, 16, 32]")
        return {"batch_sizes": [batch * self.sequence_length for _, batch in self.pieces],
                "starts": [start * self.sequence_length for start, _ in self.pieces]}

    def levanter(self) -> list[dict[str, int]]:
        """Returns the value for Levanter's trainer.train_batch_size: batches from given steps on.

        A threshold within a step takes effect at the next step, as in Megatron-LM.
        """
        steps, step, consumed = [], 0, 0
        for index, (start, batch) in enumerate(self.pieces):
            if index:
                before = self.pieces[index - 1][1]
                more = max(0, -(-(start - consumed) // before))
                step, consumed = step + more, consumed + more * before
            # A piece that is shorter than a step of the previous piece has no step of its own.
            if steps and steps[-1]["start"] == step:
                steps.pop()
            steps.append({"start": step, "value": batch})
        return steps

    def batch_at(self, consumed_samples: int) -> int:
        """The batch of the step that begins after this many consumed sequences."""
        return [batch for start, batch in self.pieces if start <= consumed_samples][-1]

    def _tokens(self, samples: int) -> str:
        """Writes a threshold in tokens, in the shortest form that both programs read as this many sequences.

        Both programs divide by the sequence length and drop the remainder, so any number of tokens between this
        sequence and the next is right. They multiply in floating point, so a number that is exact on paper may become
        one token too small.
        """
        if samples == 0:
            return "0"
        texts = []
        for suffix, unit in _UNITS.items():
            for decimals in range(_MOST_DECIMALS):
                scale = 10**decimals
                least = -(-samples * self.sequence_length * scale // unit)
                for number in (least, least + 1):
                    fraction = f".{number % scale:0{decimals}d}" if decimals else ""
                    text = f"{number // scale}{fraction}{suffix}"
                    if {_megatron_number(text) // self.sequence_length, self._copus_threshold(text)} == {samples}:
                        texts.append(text)
        return min(texts, key=len)

    def _copus_threshold(self, text: str) -> int:
        return math.floor(float(text[:-1]) * float(_UNITS[text[-1]]) / self.sequence_length)


def _megatron_number(text: str) -> int:
    unit = _UNITS.get(text[-1:].upper(), 1)
    return int(float(text[:-1] if unit > 1 else text) * unit)


def _records(path: pathlib.Path) -> Iterator[dict[str, Any]]:
    """The lines of a log. A last line without a line end belongs to a writer that is busy or was killed."""
    if not path.is_file():
        raise ValueError(f"there is no file {path}: expected the directory of a run that was logged")
    with path.open(encoding="utf-8") as file:
        for line in file:
            if line.endswith("\n"):
                yield json.loads(line)


def _batch_of(configuration: str) -> int:
    """The global batch of a configuration as logs hold it: "d=2,t=1,p=1,B=64,b=4"."""
    return int(dict(part.split("=") for part in configuration.split(","))["B"])


def _sequence_length(directory: str | pathlib.Path) -> int:
    path = pathlib.Path(directory) / "config.toml"
    if not path.is_file():
        raise ValueError(f"there is no file {path}: expected the directory of a run that was logged")
    with path.open("rb") as file:
        return tomllib.load(file)["train"]["sequence_length"]
