#!/usr/bin/env python3
"""Runs the experiment "Should beta2 and weight decay follow the batch?" of sandwich.md and appends a line for each run
to data/scaling.jsonl. It can be stopped at any time; the next call makes the missing runs. Prints the table at the end.

Usage: scaling.py [--copus build/copus] [--work DIR] [--seeds 0,1] [--table]
"""

import argparse
import math
import pathlib
import statistics
import sys

import sandwich
from measure import ROOT, rows_so_far
from sandwich import LOWEST_RATE, MODELS, REFERENCE, RUN, Experiment

ROWS = sandwich.ROWS.with_name("scaling.jsonl")
BATCHES = (16, 32)
BETA2, WEIGHT_DECAY = 0.95, 0.1
SETTINGS = {
    "beta2": lambda batch, rate, best: {"optimizer.beta2": BETA2**(batch / REFERENCE)},
    "weight_decay": lambda batch, rate, best: {
        "optimizer.weight_decay": WEIGHT_DECAY * batch / REFERENCE * best / rate},
}
CHECKED = ("bible", 0, 16)  # model, seed and batch of the run without a setting that is repeated


def best_of(rows: list[dict]) -> dict:
    return min(rows, key=lambda row: math.inf if row["loss"] is None else row["loss"])


def unscaled(model: str, seed: int, batch: int) -> list[dict]:
    return [row for row in rows_so_far(sandwich.ROWS).values()
            if row["kind"] == "whole" and (row["model"], row["seed"], row["batch"]) == (model, seed, batch)]


class Scaling(Experiment):
    """Whole runs with one setting that follows the batch."""

    def __init__(self, copus: str, work: pathlib.Path, model: str, seed: int, setting: str):
        super().__init__(copus, work, model, seed)
        self.rows, self.done, self.setting = ROWS, rows_so_far(ROWS), setting
        self.best_rate = best_of(unscaled(model, seed, REFERENCE))["rate"]

    def measure(self, kind, key, run, **fields):
        return super().measure(self.setting, key, run, **fields)

    def settings(self, batch: int, rate: float) -> dict:
        return SETTINGS[self.setting](batch, rate, self.best_rate) if self.setting in SETTINGS else {}

    def repeat(self, batch: int) -> None:
        rate = best_of(unscaled(self.model, self.seed, batch))["rate"]
        self.measure("whole", f"B{batch}", lambda: self.whole_run(batch, rate, RUN), batch=batch, rate=rate, samples=RUN)

    def run(self) -> None:
        for batch in BATCHES:
            best = best_of(unscaled(self.model, self.seed, batch))["rate"]
            self.best_power(batch, round(math.log2(best / LOWEST_RATE)))


def table() -> None:
    rows = list(rows_so_far(ROWS).values())
    print("setting | model | seed | batch | best loss without | with (rate)")
    for row in (row for row in rows if row["kind"] == "none"):
        before = best_of(unscaled(*CHECKED))["loss"]
        print(f"repeated without a setting: {row['loss']:.4f}, before {before:.4f}")
    for setting in SETTINGS:
        differences = []
        for model, seed, batch in sorted({(row["model"], row["seed"], row["batch"]) for row in rows
                                          if row["kind"] == setting}):
            without = best_of(unscaled(model, seed, batch))
            best = best_of([row for row in rows if row["kind"] == setting and
                            (row["model"], row["seed"], row["batch"]) == (model, seed, batch)])
            differences.append(best["loss"] - without["loss"])
            print(f"{setting} | {model} | {seed} | {batch} | {without['loss']:.4f} ({without['rate']:g}) | "
                  f"{best['loss']:.4f} ({best['rate']:g})")
        if len(differences) > 1:
            error = statistics.stdev(differences) / math.sqrt(len(differences))
            print(f"{setting}: mean difference {statistics.mean(differences):+.4f}, standard error {error:.4f}, "
                  f"worst {max(differences):+.4f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--copus", default=str(ROOT / "build" / "copus"))
    parser.add_argument("--work", default=str(ROOT / "runs" / "scaling"))
    parser.add_argument("--seeds", default="0,1")
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    for seed in [] if arguments.table else map(int, arguments.seeds.split(",")):
        for model in MODELS:
            if not all(unscaled(model, seed, batch) for batch in (REFERENCE, *BATCHES)):
                print(f"{model}, seed {seed}: sandwich.py has not made its whole runs yet")
                continue
            for setting in SETTINGS:
                Scaling(arguments.copus, pathlib.Path(arguments.work), model, seed, setting).run()
            if (model, seed) == CHECKED[:2]:
                Scaling(arguments.copus, pathlib.Path(arguments.work), model, seed, "none").repeat(CHECKED[2])
    table()


if __name__ == "__main__":
    sys.exit(main())
