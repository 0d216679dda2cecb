#!/usr/bin/env python3
"""Trains the trunks of sandwich.md again. At each branch point it measures the noise scales in other norms, with fixed
weights, and appends a line to data/norms.jsonl. sandwich_analyse.py compares them with the noise scale phi.

Usage: norms.py [--copus build/copus] [--work DIR]
"""

import argparse
import json
import pathlib
import shutil

from measure import LENGTH, ROOT, Runner, append, rows_so_far
from sandwich import MODELS, POINTS, REFERENCE
from sandwich import ROWS as BRANCHES

ROWS = pathlib.Path(__file__).resolve().parent / "data" / "norms.jsonl"
STILL = {"train.global_batch": 8, "optimizer.lr": 1e-12, "noise_scale.dual_interval": 1, "log.interval": 1,
         "noise_scale.window_samples": 256}
STILL_STEPS = 128
NORMS = ("sign", "spectral", "preconditioned")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--copus", default=str(ROOT / "build" / "copus"))
    parser.add_argument("--work", default=str(ROOT / "runs" / "norms"))
    arguments = parser.parse_args()
    done = rows_so_far(ROWS)
    rates = {(row["model"], row["seed"]): row["rate"] for row in rows_so_far(BRANCHES).values()
             if row["kind"] == "sandwich"}
    for (model, seed), rate in rates.items():
        if all(f"{model}-{seed}-{point}" in done for point in POINTS):
            continue
        runner = Runner(arguments.copus, pathlib.Path(arguments.work), {model: MODELS[model]})
        directory = runner.work / f"{model}-{seed}"
        shutil.rmtree(directory, ignore_errors=True)
        rows = []
        for point in POINTS:
            settings = {"train.seed": seed, "optimizer.schedule": "constant"}
            runner.train(model, directory, point != POINTS[0], **settings, **{
                "train.global_batch": REFERENCE, "optimizer.lr": rate, "train.max_tokens": point * LENGTH})
            still = runner.work / f"still-{model}-{seed}"
            shutil.rmtree(still, ignore_errors=True)
            shutil.copytree(directory, still)
            samples = point + STILL_STEPS * STILL["train.global_batch"]
            runner.train(model, still, True, **settings, **STILL, **{"train.max_tokens": samples * LENGTH})
            last = json.loads((still / "run.jsonl").read_text().splitlines()[-1])
            rows.append(dict(key=f"{model}-{seed}-{point}", model=model, seed=seed, point=point, rate=rate,
                             phi=last["noise_scale"], **{norm: [last[f"{norm}_noise_scale{end}"]
                                                                for end in ("", "_low", "_high")] for norm in NORMS}))
        append(ROWS, rows)
        print(model, seed, [row["preconditioned"][0] for row in rows], flush=True)


if __name__ == "__main__":
    main()
