#!/usr/bin/env python3
"""Runs the experiment of sandwich.md and appends a line for each run to data/sandwich.jsonl. It can be stopped at any
time; the next call makes the missing runs.

Usage: sandwich.py [--workers 2] [--copus build/copus] [--work DIR] [--seeds 0,1]
"""

import argparse
import concurrent.futures
import os
import pathlib
import shutil
import sys
import time

from measure import LENGTH, ROOT, Runner, append, rows_so_far

ROWS = pathlib.Path(__file__).resolve().parent / "data" / "sandwich.jsonl"
REFERENCE = 4  # samples, the batch of the trunk
BATCHES = (2, 8, 16, 32)
RUN = 8192  # samples of a whole run
DECAY = 0.25  # final share of a whole run or own branch in which the rate falls to zero
LOWEST_RATE = 2.5e-4
MODELS = {
    "bible": dict(architecture="llama", reference_batch=REFERENCE, lr=None, hidden_size=64, intermediate_size=176,
                  num_hidden_layers=3, num_attention_heads=2),
    "perl": dict(architecture="gpt2", reference_batch=REFERENCE, lr=None, hidden_size=64, intermediate_size=256,
                 num_hidden_layers=3, num_attention_heads=2),
}
POINTS = (512, 1024, 2048, 4096)  # samples of the trunk before the branches leave it
EXPONENTS = (0.5, 0, 1)  # of the factor kappa on the rate
RUNGS = (0.25, 0.5, 1, 1.5)
# Samples in the other batch, samples after the return; at one point also other lengths.
LENGTHS = {point: ((512, 256),) for point in POINTS} | {2048: ((512, 256), (1024, 256), (512, 512))}
ENDS = ("constant", "decay")


def sandwich_arms(point: int) -> list[dict]:
    """Returns the arms of one branch point. An arm trains in its own batch and then returns to the reference batch. The
    arms whose own batch is the reference batch are the rungs; they read different numbers of samples before the
    return."""
    arms = []
    for length, after in LENGTHS[point]:
        shared = dict(length=length, after=after)
        arms += [dict(batch=REFERENCE, exponent=0.0, samples=int(rung * length), **shared) for rung in RUNGS]
        arms += [dict(batch=batch, exponent=exponent, samples=length, **shared)
                 for exponent in EXPONENTS for batch in BATCHES]
    return arms


def own_arms() -> list[dict]:
    """Branches that end in their own batch, as in `copus calibrate`."""
    length, after = LENGTHS[POINTS[0]][0]
    total = length + after
    arms = [dict(batch=REFERENCE, exponent=0.0, samples=int(rung * total)) for rung in RUNGS]
    return arms + [dict(batch=batch, exponent=exponent, samples=total) for exponent in EXPONENTS for batch in BATCHES]


class Experiment:
    def __init__(self, copus: str, work: pathlib.Path, model: str, seed: int):
        self.model, self.seed = model, seed
        self.runner = Runner(copus, work, {model: MODELS[model]})
        self.rows, self.done = ROWS, rows_so_far(ROWS)

    def measure(self, kind: str, key: str, run, **fields) -> dict:
        """The row of this key; `run` measures it if it is missing."""
        key = f"{kind}-{self.model}-s{self.seed}-{key}"
        if key not in self.done:
            begun = time.monotonic()
            result = run()
            row = dict(key=key, kind=kind, model=self.model, seed=self.seed, **fields, **result,
                       seconds=round(time.monotonic() - begun, 2))
            append(self.rows, [row])
            self.done[key] = row
            print(f"{time.strftime('%H:%M:%S')} {key} {row.get('loss')}", flush=True)
        return self.done[key]

    def settings(self, batch: int, rate: float) -> dict:
        """Further settings of a run in this batch at this rate."""
        return {}

    def train(self, directory: pathlib.Path, resume: bool, batch: int, rate: float, until: int, decay: int = 0) -> dict:
        """Trains up to `until` samples; the rate falls to zero over the last `decay` of them."""
        schedule = {"optimizer.schedule": "wsd", "optimizer.decay_tokens": decay * LENGTH} if decay else \
            {"optimizer.schedule": "constant"}
        summary = self.runner.train(self.model, directory, resume, **{
            "train.seed": self.seed, "train.global_batch": batch, "optimizer.lr": rate, "noise_scale.enabled": "false",
            "train.max_tokens": until * LENGTH, **schedule, **self.settings(batch, rate)})
        return dict(loss=summary["held_out_loss"], skipped=summary.get("skipped_steps"))

    def directory(self, name: str) -> pathlib.Path:
        return self.runner.work / f"{name}-{self.model}-{self.seed}-{os.getpid()}"

    def whole_run(self, batch: int, rate: float, samples: int) -> dict:
        directory = self.directory("whole")
        shutil.rmtree(directory, ignore_errors=True)
        result = self.train(directory, False, batch, rate, samples, int(DECAY * samples))
        shutil.rmtree(directory)
        return result

    def best_power(self, batch: int, middle: int) -> int:
        """Returns the exponent e for which a whole run at rate LOWEST_RATE * 2**e ends with the lowest loss. The range
        of tried exponents grows until the best exponent is not at its edge."""
        losses: dict[int, float] = {}
        wanted = {middle - 1, middle, middle + 1}
        while wanted:
            for power in sorted(wanted):
                rate = LOWEST_RATE * 2**power
                row = self.measure("whole", f"B{batch}-r{power}", lambda: self.whole_run(batch, rate, RUN), batch=batch,
                                   rate=rate, samples=RUN)
                losses[power] = row["loss"] if row["loss"] is not None else float("inf")
            best = min(losses, key=losses.__getitem__)
            wanted = {best - 1, best + 1} - set(losses)
        return best

    def whole_runs(self) -> float:
        """Runs every batch at rates around its best one. Returns the best rate of the reference batch."""
        power = self.best_power(REFERENCE, 2)
        rate = LOWEST_RATE * 2**power
        for rung in (0.25, 0.5, 0.75, 1.5):
            samples = int(rung * RUN)
            self.measure("rung", f"n{samples}", lambda: self.whole_run(REFERENCE, rate, samples), batch=REFERENCE,
                         rate=rate, samples=samples)
        for batch in BATCHES:
            self.best_power(batch, power + (batch > 2 * REFERENCE))
        return rate

    def trunk(self, rate: float) -> None:
        trunk = self.runner.work / f"trunk-{self.model}-{self.seed}"
        self.runner.models[self.model] = MODELS[self.model] | {"lr": rate}
        if not all((trunk / f"at-{point}").exists() for point in POINTS):
            append(self.rows, [row for row in self.runner.trunk(self.model, self.seed, list(POINTS))
                          if row["key"] not in self.done])

    def sandwich(self, point: int, arm: dict, rate: float) -> dict:
        """Trains in the arm's batch, then returns to the reference batch with each kind of end."""
        directory, results = self.directory("branch"), {}
        self.runner.leave_trunk(self.model, self.seed, point, directory)
        other_rate = rate * (arm["batch"] / REFERENCE)**arm["exponent"]
        results["before"] = self.train(directory, True, arm["batch"], other_rate, point + arm["samples"])["loss"]
        for end in ENDS:
            copy = self.directory(f"end-{end}")
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(directory, copy, symlinks=True)
            results[end] = self.train(copy, True, REFERENCE, rate, point + arm["samples"] + arm["after"],
                                      arm["after"] if end == "decay" else 0)["loss"]
            shutil.rmtree(copy)
        shutil.rmtree(directory)
        return results

    def own_branch(self, point: int, arm: dict, rate: float) -> dict:
        directory = self.directory("own")
        self.runner.leave_trunk(self.model, self.seed, point, directory)
        result = self.train(directory, True, arm["batch"], rate * (arm["batch"] / REFERENCE)**arm["exponent"],
                            point + arm["samples"], int(DECAY * arm["samples"]))
        shutil.rmtree(directory)
        return result

    def run(self) -> str:
        rate = self.whole_runs()
        self.trunk(rate)
        for point in POINTS:
            for arm in sandwich_arms(point):
                self.measure("sandwich", f"{point}-B{arm['batch']}-e{arm['exponent']}-n{arm['samples']}"
                             f"-of{arm['length']}-{arm['after']}", lambda: self.sandwich(point, arm, rate), point=point,
                             rate=rate, **arm)
            for arm in own_arms():
                self.measure("own", f"{point}-B{arm['batch']}-e{arm['exponent']}-n{arm['samples']}",
                             lambda: self.own_branch(point, arm, rate), point=point, rate=rate, **arm)
        return f"{self.model}, seed {self.seed}: complete"


def run(copus: str, work: str, model: str, seed: int) -> str:
    return Experiment(copus, pathlib.Path(work), model, seed).run()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--copus", default=str(ROOT / "build" / "copus"))
    parser.add_argument("--work", default=str(ROOT / "runs" / "sandwich"))
    parser.add_argument("--seeds", default="0,1")
    arguments = parser.parse_args()
    with concurrent.futures.ProcessPoolExecutor(arguments.workers) as pool:
        futures = [pool.submit(run, arguments.copus, arguments.work, model, int(seed))
                   for seed in arguments.seeds.split(",") for model in MODELS]
        for future in concurrent.futures.as_completed(futures):
            print(future.result(), flush=True)


if __name__ == "__main__":
    sys.exit(main())
