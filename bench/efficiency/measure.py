#!/usr/bin/env python3
"""Runs the branches of the experiment (README.md) and appends a line for each to data/rows.jsonl. It can be stopped at
any time; the next call runs the missing branches.

Usage: measure.py [--workers 2] [--copus build/copus] [--work DIR] [--sets SET,...] [--seeds 0,1,...]
"""

import argparse
import concurrent.futures
import fcntl
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
ROWS = pathlib.Path(__file__).resolve().parent / "data" / "rows.jsonl"
LENGTH = 128  # bytes of a sequence
EVALUATED = 800  # held-out sequences
FEWEST_UPDATES = 32

MODELS = {
    "gcide": dict(architecture="llama", reference_batch=8, lr=3e-3, hidden_size=128, intermediate_size=352,
                  num_hidden_layers=4, num_attention_heads=4),
    "wordnet": dict(architecture="llama", reference_batch=4, lr=1e-3, hidden_size=96, intermediate_size=256,
                    num_hidden_layers=3, num_attention_heads=3),
    "python": dict(architecture="llama", reference_batch=4, lr=1e-3, hidden_size=96, intermediate_size=256,
                   num_hidden_layers=4, num_attention_heads=4),
}

# Samples of the trunk before the branches leave it, samples of a branch, multiples of the reference batch.
SETS = {
    "gcide-0k": ("gcide", 0, 2048, (0.5, 2, 4, 8)),
    "gcide-49k": ("gcide", 384, 1024, (0.5, 2, 4)),
    "gcide-262k": ("gcide", 2048, 2048, (0.5, 2, 4, 8)),
    "gcide-524k": ("gcide", 4096, 4096, (0.5, 2, 4, 8, 16)),
    "gcide-1573k": ("gcide", 12288, 4096, (0.5, 2, 4, 8, 16)),
    "wordnet-49k": ("wordnet", 384, 1024, (0.5, 2, 4, 8)),
    "wordnet-262k": ("wordnet", 2048, 2048, (0.5, 2, 4, 8, 16)),
    "wordnet-1049k": ("wordnet", 8192, 2048, (0.5, 2, 4, 8, 16)),
    "python-49k": ("python", 384, 1024, (0.5, 2, 4, 8)),
    "python-262k": ("python", 2048, 2048, (0.5, 2, 4, 8, 16)),
    "python-1049k": ("python", 8192, 2048, (0.5, 2, 4, 8, 16)),
}
LADDER = (0.125, 0.25, 0.5, 1, 2)
EXPONENTS = (0.5, 0, 0.25, 1)
SEEDS_OF_EVERY_RATE = 3
SEEDS = 8


def arms(name: str, seed: int) -> list[dict]:
    """Returns the branches of a set with this seed: for each branch the number of samples that it reads, its batch and
    its rate."""
    model, _, length, multiples = SETS[name]
    reference, lr = MODELS[model]["reference_batch"], MODELS[model]["lr"]
    if name == "gcide-0k" and seed >= SEEDS_OF_EVERY_RATE:
        return []
    chosen = [dict(batch=reference, exponent=0.5, samples=int(share * length), lr=lr) for share in LADDER
              if share * length / reference >= FEWEST_UPDATES]
    for exponent in EXPONENTS:
        if exponent != 0.5 and seed >= SEEDS_OF_EVERY_RATE:
            continue
        for multiple in multiples:
            batch = int(multiple * reference)
            if length / batch >= FEWEST_UPDATES:
                chosen.append(dict(batch=batch, exponent=exponent, samples=length, lr=lr * multiple**exponent))
    return chosen


class Runner:
    """Trains trunks and branches of the models. A model is a dictionary of the fields of [model], reference_batch and
    lr."""

    def __init__(self, copus: str, work: pathlib.Path, models: dict[str, dict]):
        self.copus, self.work, self.models = copus, work, models
        work.mkdir(parents=True, exist_ok=True)
        for name, model in models.items():
            fields = {key: value for key, value in model.items() if key not in ("reference_batch", "lr")}
            lines = ["[model]", "vocab_size = 256"]
            lines += [f"{key} = {json.dumps(value)}" for key, value in fields.items()]
            lines += [f"max_position_embeddings = {LENGTH}", "[data]", f'train = "data/{name}/train.txt"',
                      f'held_out = ["data/{name}/held_out.txt"]', 'document_separator = "\\n\\n\\n"',
                      "mask_across_documents = false", "[train]",
                      f"sequence_length = {LENGTH}", 'precision = "fp32"', "threads = 1", "[optimizer]",
                      "warmup_tokens = 0", "min_lr_ratio = 0.0", 'batch_scaling = "none"', "[evaluate]", "interval = 0", "[checkpoint]",
                      "keep_last = 16", "[log]", "tensorboard = false", "interval = 100000"]
            (work / f"{name}.toml").write_text("\n".join(lines) + "\n")

    def command(self, *arguments: str) -> str:
        result = subprocess.run([self.copus, *arguments], cwd=ROOT, capture_output=True, text=True)
        if result.returncode != 0:
            raise RuntimeError(f"{' '.join(arguments)}\nended with {result.returncode}:\n{result.stdout}{result.stderr}")
        return result.stdout

    def train(self, model: str, directory: pathlib.Path, resume: bool, **settings) -> dict:
        batch = settings["train.global_batch"]
        settings["train.micro_batch"] = min(batch, 8)
        settings["evaluate.max_batches"] = EVALUATED // settings["train.micro_batch"]
        options = [option for key, value in settings.items() for option in ("--set", f"{key}={value}")]
        self.command("train", str(self.work / f"{model}.toml"), "--run-dir", str(directory),
                     *(["--resume"] if resume else []), *options)
        return json.loads((directory / "summary.json").read_text())

    def trunk(self, model: str, seed: int, points: list[int]) -> list[dict]:
        """Trains the trunk to every branch point; returns a row for each, with loss and noise scale."""
        directory = self.work / f"trunk-{model}-{seed}"
        shutil.rmtree(directory, ignore_errors=True)
        rows = []
        begun = time.monotonic()
        for point in points:
            summary = self.train(model, directory, resume=point != points[0], **{
                "train.seed": seed, "train.global_batch": self.models[model]["reference_batch"],
                "optimizer.lr": self.models[model]["lr"], "optimizer.schedule": "constant",
                "train.max_tokens": point * LENGTH})
            newest = max((directory / "checkpoints").iterdir(), key=lambda path: path.stat().st_mtime)
            newest.rename(directory / f"at-{point}")
            (directory / "checkpoints").joinpath(newest.name).symlink_to(directory / f"at-{point}")
            noise = json.loads(self.command("gns", "--checkpoint", str(directory / f"at-{point}"), "--json",
                                            "--batches", "16", "--large-batch", "32", "--threads", "1"))
            last = json.loads((directory / "run.jsonl").read_text().splitlines()[-1])
            rows.append(dict(key=f"trunk-{model}-{seed}-{point}", kind="trunk", model=model, seed=seed,
                             consumed=point, loss=summary["held_out_loss"],
                             phi={key: noise[key] for key in ("noise_scale", "noise_scale_low", "noise_scale_high")},
                             online={key: last[key] for key in ("noise_scale", "noise_scale_low", "noise_scale_high")},
                             seconds=time.monotonic() - begun))
        return rows

    def leave_trunk(self, model: str, seed: int, point: int, directory: pathlib.Path) -> None:
        """Makes the directory of a run that resumes from the trunk's checkpoint."""
        shutil.rmtree(directory, ignore_errors=True)
        if point == 0:
            return
        source = self.work / f"trunk-{model}-{seed}" / f"at-{point}"
        updates = point // self.models[model]["reference_batch"]
        (directory / "checkpoints").mkdir(parents=True)
        shutil.copytree(source, directory / "checkpoints" / name_of_checkpoint(source, updates), copy_function=os.link)
        shutil.copy(source.parent / "config.toml", directory)

    def branch(self, name: str, seed: int, arm: dict) -> dict:
        model, point, _, _ = SETS[name]
        directory = self.work / f"branch-{os.getpid()}-{key_of(name, seed, arm)}"
        self.leave_trunk(model, seed, point, directory)
        begun = time.monotonic()
        summary = self.train(model, directory, resume=point > 0, **{
            "train.seed": seed, "train.global_batch": arm["batch"], "optimizer.lr": arm["lr"],
            "optimizer.schedule": "wsd", "optimizer.decay_tokens": arm["samples"] // 4 * LENGTH,
            "noise_scale.enabled": "false", "train.max_tokens": (point + arm["samples"]) * LENGTH})
        shutil.rmtree(directory)
        return dict(key=key_of(name, seed, arm), kind="branch", set=name, seed=seed, **arm,
                    loss=summary["held_out_loss"], skipped=summary.get("skipped_steps"),
                    seconds=round(time.monotonic() - begun, 2))


def name_of_checkpoint(source: pathlib.Path, updates: int) -> str:
    link = [path for path in (source.parent / "checkpoints").iterdir() if path.resolve() == source.resolve()]
    assert len(link) == 1 and str(updates) in link[0].name, (source, link)
    return link[0].name


def key_of(name: str, seed: int, arm: dict) -> str:
    return f"{name}-s{seed}-B{arm['batch']}-e{arm['exponent']}-n{arm['samples']}"


def rows_so_far(path: pathlib.Path) -> dict[str, dict]:
    if not path.exists():
        return {}
    return {row["key"]: row for row in map(json.loads, path.read_text().splitlines())}


def append(path: pathlib.Path, rows: list[dict]) -> None:
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        for row in rows:
            file.write(json.dumps(row) + "\n")


def work_on(copus: str, work: str, names: list[str], model: str, seed: int, every_rate: bool) -> str:
    """Runs one trunk and its missing branches; rates other than kappa^(1/2) only if `every_rate`."""
    runner = Runner(copus, pathlib.Path(work), MODELS)
    done = rows_so_far(ROWS)
    missing = [(name, arm) for name in names if SETS[name][0] == model for arm in arms(name, seed)
               if key_of(name, seed, arm) not in done and (every_rate or arm["exponent"] == 0.5)]
    if not missing:
        return f"{model} seed {seed}: complete"
    needed = {SETS[name][1] for name in names if SETS[name][0] == model} - {0}
    trunk = runner.work / f"trunk-{model}-{seed}"
    if not all((trunk / f"at-{point}").exists() for point in needed):
        points = sorted({point for of_model, point, _, _ in SETS.values() if of_model == model and point > 0})
        rows = runner.trunk(model, seed, points)
        append(ROWS, [row for row in rows if row["key"] not in done])
    for number, (name, arm) in enumerate(missing):
        append(ROWS, [runner.branch(name, seed, arm)])
        print(f"{time.strftime('%H:%M:%S')} {model} seed {seed}: {number + 1} of {len(missing)}", flush=True)
    return f"{model} seed {seed}: done"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--copus", default=str(ROOT / "build" / "copus"))
    parser.add_argument("--work", default=str(ROOT / "runs" / "efficiency"))
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--seeds", default=",".join(map(str, range(SEEDS))))
    arguments = parser.parse_args()
    names = arguments.sets.split(",")
    ROWS.parent.mkdir(exist_ok=True)
    seeds = [int(seed) for seed in arguments.seeds.split(",")]
    jobs = [(seed, False) for seed in seeds] + [(seed, True) for seed in seeds if seed < SEEDS_OF_EVERY_RATE]
    # Run first what every verdict needs, so that the rows are useful however early they are analysed.
    jobs.sort(key=lambda job: job[0] + (SEEDS_OF_EVERY_RATE if job[1] else 0))
    with concurrent.futures.ProcessPoolExecutor(arguments.workers) as pool:
        futures = [pool.submit(work_on, arguments.copus, arguments.work, names, model, seed, every_rate)
                   for seed, every_rate in jobs for model in MODELS]
        for future in concurrent.futures.as_completed(futures):
            if future.exception():
                pool.shutdown(wait=False, cancel_futures=True)
            print(future.result(), flush=True)


if __name__ == "__main__":
    sys.exit(main())
