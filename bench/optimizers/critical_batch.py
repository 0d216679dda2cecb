#!/usr/bin/env python3
"""Measures the critical batch under AdamW and Muon by training branches, and the noise scales in four norms for
comparison.

    bench/optimizers/critical_batch.py build/copus --data data/wordnet --rows bench/optimizers/critical_batch.jsonl

README.md states the question, the repetitions and the analysis, which were fixed before anything ran. Every finished
run is a row of the file of rows; runs that have a row are not repeated. Prints the tables at the end, or with --table
alone.
"""

import argparse
import itertools
import json
import math
import os
import pathlib
import shutil
import statistics
import subprocess

OPTIMIZERS = ("adamw", "muon")
RATES = (5e-4, 1e-3, 2e-3, 4e-3, 8e-3)  # of which the trunk takes the best
LENGTH = 128  # bytes of a sequence
REFERENCE = 4  # samples, the batch of the trunk
POINTS = {384: 1024, 2048: 2048, 8192: 2048}  # samples of the trunk before branches leave it: samples of a branch
BATCHES = (2, 8, 16, 32)
EXPONENTS = (0, 0.5, 1)  # of the batch's ratio to the reference, as a factor of the rate
REFERENCE_FACTORS = (0.5, 1, 2)  # of the rate, for branches in the reference batch
LADDER = (0.25, 0.5, 1, 2)  # lengths of branches in the reference batch
STILL_BATCH, STILL_STEPS = 8, 128  # of the measurement of noise scales with the weights held still
NORMS = ("euclidean", "sign", "spectral", "preconditioned")

RUN = """
[model]
architecture = "llama"
vocab_size = 256
hidden_size = 96
intermediate_size = 256
num_hidden_layers = 3
num_attention_heads = 3
max_position_embeddings = {length}
[data]
train = "{data}/train.txt"
held_out = ["{data}/held_out.txt"]
document_separator = "\\n\\n\\n"
mask_across_documents = false
[train]
sequence_length = {length}
precision = "fp32"
threads = 1
[optimizer]
kind = "{optimizer}"
batch_scaling = "none"
warmup_tokens = 0
min_lr_ratio = 0.0
[evaluate]
interval = 0
[checkpoint]
keep_last = 16
[log]
tensorboard = false
interval = 1000000
"""


class Experiment:
    def __init__(self, program: pathlib.Path, data: pathlib.Path, rows: pathlib.Path, work: pathlib.Path):
        self.program, self.data, self.path, self.work = program, data, rows, work
        self.rows = {row["key"]: row for row in read(rows)}

    def train(self, folder: pathlib.Path, optimizer: str, resume: bool, **settings) -> dict:
        """Trains in `folder` and returns the last record of its run."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "run.toml").write_text(RUN.format(length=LENGTH, data=self.data, optimizer=optimizer))
        settings["train.micro_batch"] = min(settings["train.global_batch"], 8)
        settings["evaluate.max_batches"] = 800 // settings["train.micro_batch"]
        options = [option for name, value in settings.items() for option in ("--set", f"{name}={value}")]
        command = [self.program, "train", folder / "run.toml", "--run-dir", folder / "run", *options]
        subprocess.run(command + ["--resume"] * resume, stdout=subprocess.DEVNULL, check=True)
        last = json.loads((folder / "run" / "run.jsonl").read_text().splitlines()[-1])
        summary = json.loads((folder / "run" / "summary.json").read_text())
        return {**last, "held_out_loss": summary["held_out_loss"]}

    def keep(self, **row) -> dict:
        self.rows[row["key"]] = row
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(row["key"], f"{row['loss']:.4f}", flush=True)
        return row

    def resumed(self, start: pathlib.Path | None) -> pathlib.Path:
        """Makes a folder whose run resumes from a checkpoint, or begins."""
        folder = self.work / f"branch-{os.getpid()}"
        shutil.rmtree(folder, ignore_errors=True)
        if start:
            shutil.copytree(start, folder / "run" / "checkpoints" / start.name)
            shutil.copy(start.parent.parent / "config.toml", folder / "run")
        return folder

    def branch(self, key: str, optimizer: str, seed: int, start: pathlib.Path | None, point: int, samples: int,
               batch: int, rate: float, **facts) -> None:
        """Trains `samples` from the trunk's checkpoint `start`, or from the beginning. The rate falls to zero over the
        last quarter."""
        if key in self.rows:
            return
        folder = self.resumed(start)
        last = self.train(folder, optimizer, start is not None, **{
            "train.seed": seed, "train.global_batch": batch, "optimizer.lr": rate, "optimizer.schedule": "wsd",
            "optimizer.decay_tokens": samples // 4 * LENGTH, "noise_scale.enabled": "false",
            "train.max_tokens": (point + samples) * LENGTH})
        shutil.rmtree(folder)
        self.keep(key=key, kind="branch", optimizer=optimizer, seed=seed, point=point, samples=samples, batch=batch,
                  rate=rate, loss=last["held_out_loss"], **facts)

    def trunk_rate(self, optimizer: str) -> float:
        losses = {}
        for rate in RATES:
            key = f"{optimizer}-rate-{rate}"
            self.branch(key, optimizer, 0, None, 0, 2048, REFERENCE, rate, is_search=True)
            losses[rate] = self.rows[key]["loss"]
        return min(losses, key=losses.get)

    def trunk(self, optimizer: str, seed: int, rate: float) -> dict[int, pathlib.Path]:
        """Trains the trunk, and returns its checkpoint at every point."""
        folder = self.work / f"trunk-{optimizer}-{seed}"
        at = {point: folder / "run" / "checkpoints" / f"at-{point}" for point in POINTS}
        kept = folder / "checkpoints.json"
        if kept.exists():
            return {int(point): pathlib.Path(path) for point, path in json.loads(kept.read_text()).items()}
        shutil.rmtree(folder, ignore_errors=True)
        for number, point in enumerate(POINTS):
            last = self.train(folder, optimizer, number > 0, **{
                "train.seed": seed, "train.global_batch": REFERENCE, "optimizer.lr": rate,
                "optimizer.schedule": "constant", "noise_scale.enabled": "false",
                "train.max_tokens": point * LENGTH})
            at[point] = max((folder / "run" / "checkpoints").iterdir(), key=lambda path: path.stat().st_mtime)
            key = f"{optimizer}-{seed}-{point}"
            if key not in self.rows:
                self.keep(key=key, kind="trunk", optimizer=optimizer, seed=seed, point=point, rate=rate,
                          loss=last["held_out_loss"])
        kept.write_text(json.dumps({point: str(path) for point, path in at.items()}))
        return at

    def still(self, optimizer: str, seed: int, start: pathlib.Path, point: int) -> None:
        """Measures the noise scales at the checkpoint, with the weights held still."""
        key = f"{optimizer}-{seed}-{point}-still"
        if key in self.rows:
            return
        folder = self.resumed(start)
        last = self.train(folder, optimizer, True, **{
            "train.seed": seed, "train.global_batch": STILL_BATCH, "optimizer.lr": 1e-12,
            "optimizer.schedule": "constant", "noise_scale.enabled": "true", "noise_scale.dual_interval": 1,
            "noise_scale.window_samples": 256,
            "train.max_tokens": (point + STILL_STEPS * STILL_BATCH) * LENGTH})
        shutil.rmtree(folder)
        self.keep(key=key, kind="still", optimizer=optimizer, seed=seed, point=point, loss=last["held_out_loss"],
                  scales=scales_of(last))

    def run(self, optimizer: str, seed: int) -> None:
        rate = self.trunk_rate(optimizer)
        checkpoints = self.trunk(optimizer, seed, rate)
        for point, length in POINTS.items():
            self.still(optimizer, seed, checkpoints[point], point)
            for batch, exponent in itertools.product(BATCHES, EXPONENTS):
                key = f"{optimizer}-{seed}-{point}-B{batch}-e{exponent}"
                self.branch(key, optimizer, seed, checkpoints[point], point, length, batch,
                            rate * (batch / REFERENCE) ** exponent)
            for share, factor in itertools.product(LADDER, REFERENCE_FACTORS):
                key = f"{optimizer}-{seed}-{point}-ladder{share}-r{factor}"
                self.branch(key, optimizer, seed, checkpoints[point], point, int(share * length), REFERENCE,
                            rate * factor)


def scales_of(record: dict) -> dict[str, list[float | None]]:
    """The noise scale with its interval, by norm."""
    prefixes = {norm: "" if norm == "euclidean" else f"{norm}_" for norm in NORMS}
    return {norm: [record[f"{prefix}noise_scale{end}"] for end in ("", "_low", "_high")]
            for norm, prefix in prefixes.items()}


def read(path: pathlib.Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def equivalent_samples(ladder: list[tuple[float, float]], loss: float) -> float | None:
    """Reads the ladder of (samples, loss), linear in ln samples between its rungs and on its outer lines."""
    for (n0, l0), (n1, l1) in itertools.pairwise(ladder):
        is_beyond = (loss < l1 and (n1, l1) == ladder[-1]) or (loss > l0 and (n0, l0) == ladder[0])
        if l0 > l1 and (l0 >= loss >= l1 or is_beyond):
            return n0 * (n1 / n0) ** ((l0 - loss) / (l0 - l1))
    return None


def critical_batch(worths: dict[int, float]) -> tuple[float, float, float]:
    """Fits ln SE(B) = ln((B_c + B_ref) / (B_c + B)) by least squares; returns B_c with its interval."""
    grid = [math.exp(0.02 * i) for i in range(-100, 400)]

    def squares(critical):
        return sum((math.log(worth) - math.log((critical + REFERENCE) / (critical + batch))) ** 2
                   for batch, worth in worths.items())

    errors = {critical: squares(critical) for critical in grid}
    best = min(errors, key=errors.get)
    variance = max(0.02**2, errors[best] / (len(worths) - 1))
    inside = [critical for critical, error in errors.items() if error - errors[best] <= 3.84 * variance]
    return best, min(inside), max(inside)


def ranks(values):
    return [sorted(values).index(value) for value in values]


def tables(rows: list[dict]) -> None:
    print("optimizer | samples before | seed | SE at " + ", ".join(map(str, BATCHES)) + " | best exponents | B_c | " +
          " | ".join(NORMS))
    pairs = []
    for still in sorted((row for row in rows if row["kind"] == "still"),
                        key=lambda row: (row["optimizer"], row["point"], row["seed"])):
        some = [row for row in rows if row["kind"] != "still" and "is_search" not in row and
                all(row[name] == still[name] for name in ("optimizer", "seed", "point"))]
        branches = [row for row in some if row["kind"] == "branch"]
        if len(branches) < len(BATCHES) * len(EXPONENTS) + len(LADDER) * len(REFERENCE_FACTORS):
            continue
        [trunk] = [row for row in some if row["kind"] == "trunk"]
        length = POINTS[still["point"]]
        best = {}
        for row in branches:
            size = (row["batch"], row["samples"])
            if size not in best or row["loss"] < best[size]["loss"]:
                best[size] = row
        ladder = sorted((samples, row["loss"]) for (batch, samples), row in best.items() if batch == REFERENCE)
        worths = {batch: equivalent_samples(ladder, best[batch, length]["loss"]) / length for batch in BATCHES}
        exponents = [round(math.log(best[batch, length]["rate"] / trunk["rate"]) / math.log(batch / REFERENCE), 1)
                     for batch in BATCHES]
        critical, low, high = critical_batch(worths)
        pairs.append((still, critical))
        print(f"{still['optimizer']} | {still['point']} | {still['seed']} | "
              f"{', '.join(f'{worth:.2f}' for worth in worths.values())} | {exponents} | "
              f"{critical:.1f} ({low:.1f} .. {high:.1f}) | " +
              " | ".join(shown(*still["scales"][norm]) for norm in NORMS))
    print("\noptimizer | norm | points | rank correlation | geometric mean of B_c / scale | deviation of its logarithm")
    for optimizer, norm in itertools.product((*OPTIMIZERS, "both"), NORMS):
        known = [(math.log(still["scales"][norm][0]), math.log(critical)) for still, critical in pairs
                 if still["scales"][norm][0] and optimizer in (still["optimizer"], "both")]
        if len(known) < 3:
            continue
        scales, criticals = zip(*known)
        ratios = [critical - scale for scale, critical in known]
        print(f"{optimizer} | {norm} | {len(known)} | {statistics.correlation(ranks(scales), ranks(criticals)):.2f} | "
              f"{math.exp(statistics.mean(ratios)):.3f} | {statistics.pstdev(ratios):.2f}")


def shown(value: float | None, low: float | None, high: float | None) -> str:
    if value:
        return f"{value:.1f} ({low:.1f} .. {high:.1f})"
    return f"at least {low:.1f}" if low else "unknown"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("program", nargs="?", type=pathlib.Path)
    parser.add_argument("--data", type=pathlib.Path)
    parser.add_argument("--rows", type=pathlib.Path, required=True)
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path("runs/critical_batch"))
    parser.add_argument("--seeds", default="0,1")
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if not options.table:
        experiment = Experiment(options.program.resolve(), options.data.resolve(), options.rows, options.work.resolve())
        for seed, optimizer in itertools.product(map(int, options.seeds.split(",")), OPTIMIZERS):
            experiment.run(optimizer, seed)
    tables(read(options.rows))


if __name__ == "__main__":
    main()
