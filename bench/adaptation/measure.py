#!/usr/bin/env python3
"""Does a switch bring what was predicted? Trains the quickstart's model with adapt.policy = "copus" several times, each
time from a different layout, batch and seed, until enough switches have been made. For each switch, compares two
predictions with the values measured after the switch ("realised" in decisions.jsonl): the gain in Goodput and the
seconds per step. Prints every switch. Also prints the correlation, the bias (the mean of realised minus predicted) and
the spread of the errors, once for the gains and once for the step seconds. The realised gain is computed with the
formula of the prediction, from the measured step seconds and noise scale. It does not show whether the loss really fell
faster. "progress" shows that: it states how much faster the loss fell after the switch than before, if both trends are
significant.

A switch is counted once enough steps have run after it. A run takes about a minute; about 8 runs are needed. Use two
cores that do nothing else. Runs that are in --output already are not repeated, so an interrupted measurement resumes.
"""

import argparse
import json
import math
import os
import pathlib
import random
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
LAYOUTS = [{"d": d, "t": t, "p": p} for d, t, p in ((2, 2, 1), (4, 1, 1), (2, 1, 2), (1, 2, 2), (1, 1, 4))]
BATCHES = [8, 32, 96]


def beginnings(seed: int):
    """Yields where runs begin, without end: every layout and batch once before any is repeated."""
    chance = random.Random(seed)
    number = 0
    while True:
        pairs = [(layout, batch) for layout in LAYOUTS for batch in BATCHES]
        chance.shuffle(pairs)
        for layout, batch in pairs:
            number += 1
            yield {"layout": layout, "batch": batch, "seed": number}


def train(copus: str, config: str, directory: pathlib.Path, beginning: dict, seconds: int, settings: list[str]) -> None:
    layout = beginning["layout"]
    overrides = [f"parallel.data_parallel={layout['d']}", f"parallel.tensor_parallel={layout['t']}",
                 f"parallel.pipeline_parallel={layout['p']}",
                 f"train.global_batch={beginning['batch']}", "train.micro_batch=2", f"train.seed={beginning['seed']}",
                 f"train.max_seconds={seconds}", "evaluate.max_batches=1", "log.tensorboard=false",
                 "data.mask_across_documents=false", *settings]
    command = [copus, "train", config, "--run-dir", str(directory)]
    for setting in overrides:
        command += ["--set", setting]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\nended with {result.returncode}:\n{result.stderr}")


def events_of(directory: pathlib.Path, kind: str) -> list[dict]:
    lines = (directory / "decisions.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == kind]


def layout_of(configuration: str) -> list[str]:
    return [part for part in configuration.split(",") if part[:2] not in ("B=", "b=")]


def correlation(a: list[float], b: list[float]) -> float:
    return statistics.correlation(a, b) if len(set(a)) > 1 and len(set(b)) > 1 else math.nan


def judge(predicted: list[float], realised: list[float]) -> dict:
    errors = sorted(r - p for p, r in zip(predicted, realised))
    return {"n": len(errors), "correlation": correlation(predicted, realised), "bias": statistics.fmean(errors),
            "median_error": statistics.median(errors), "median_absolute_error": statistics.median(map(abs, errors)),
            "smallest_error": errors[0], "largest_error": errors[-1]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--copus", default="build/copus")
    parser.add_argument("--config", default="configs/runs/quickstart.toml", help="a run that adapts, of four ranks")
    parser.add_argument("--switches", type=int, default=20, help="how many to measure at least")
    parser.add_argument("--seconds", type=int, default=60, help="of training, each run")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of all runs")
    parser.add_argument("--output", default="runs/adaptation", help="where the runs are kept")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()

    copus, output = str(pathlib.Path(arguments.copus).resolve()), ROOT / arguments.output
    rows, runs, load = [], 0, []
    for beginning in beginnings(arguments.seed):
        if len(rows) >= arguments.switches:
            break
        directory = output / f"run-{beginning['seed']:02}"
        if not (directory / "summary.json").exists():
            load.append(os.getloadavg()[0])
            train(copus, arguments.config, directory, beginning, arguments.seconds, arguments.set)
        runs += 1
        if runs > len(LAYOUTS) * len(BATCHES) and not rows:
            raise SystemExit("no run has made a switch, from any layout and batch: see the reasons in decisions.jsonl")
        for event in events_of(directory, "realised"):
            rows.append({"run": directory.name, "from": event["from"], "to": event["to"],
                         "is_relayout": layout_of(event["from"]) != layout_of(event["to"]),
                         **{key: event[key] for key in ("predicted_gain", "realised_gain", "predicted_step_seconds",
                                                        "realised_step_seconds", "progress_ratio")}})
        if not arguments.json:
            print(f"{directory.name}: {name_of(beginning)}, {len(rows)} switches so far", file=sys.stderr, flush=True)

    with_gain = [row for row in rows if row["realised_gain"] is not None]
    logs = [(math.log(row["predicted_step_seconds"]), math.log(row["realised_step_seconds"])) for row in rows]
    parts = {"gain": judge([row["predicted_gain"] for row in with_gain], [row["realised_gain"] for row in with_gain]),
             "gain_sign_agrees": sum((row["predicted_gain"] > 0) == (row["realised_gain"] > 0) for row in with_gain),
             "log_step_seconds": judge([p for p, _ in logs], [r for _, r in logs])}
    for kind, is_relayout in (("relayouts", True), ("batch_changes", False)):
        some = [row for row in with_gain if row["is_relayout"] == is_relayout]
        if len(some) > 1:
            parts[f"gain_of_{kind}"] = judge([row["predicted_gain"] for row in some],
                                             [row["realised_gain"] for row in some])
    # Compares predicted gains with the progress after the switch. progress_ratio tends to be lower than the gain,
    # because the loss falls more slowly later in a run, with or without a switch.
    fell = [row for row in with_gain if row["progress_ratio"] is not None]
    if len(fell) > 1:
        parts["progress"] = judge([row["predicted_gain"] for row in fell], [row["progress_ratio"] - 1 for row in fell])
    if arguments.json:
        print(json.dumps({"runs": runs, "load_before": load, **parts, "switches": rows}))
        return 0
    print("Goodput, predicted and realised | ms of a step, predicted and realised")
    for row in rows:
        gain = "      -" if row["realised_gain"] is None else f"{100 * row['realised_gain']:+7.1f}"
        print(f"{100 * row['predicted_gain']:+7.1f} {gain} %  | {1000 * row['predicted_step_seconds']:8.1f} "
              f"{1000 * row['realised_step_seconds']:8.1f} | {row['from']} -> {row['to']}")
    for what in ("gain", "gain_of_relayouts", "gain_of_batch_changes", "progress"):
        if what not in parts:
            continue
        part = parts[what]
        print(f"{what.replace('_', ' ')}: n {part['n']}, correlation {part['correlation']:.2f}, bias "
              f"{100 * part['bias']:+.1f} points, median error {100 * part['median_error']:+.1f}, median of its size "
              f"{100 * part['median_absolute_error']:.1f}, {100 * part['smallest_error']:+.1f} .. "
              f"{100 * part['largest_error']:+.1f}")
    print(f"the sign agrees in {parts['gain_sign_agrees']} of {len(with_gain)}")
    part = parts["log_step_seconds"]
    print(f"step seconds: correlation of the logarithms {part['correlation']:.2f}, bias {100 * part['bias']:+.1f} %, "
          f"median of the error's size {100 * part['median_absolute_error']:.1f} %")
    return 0


def name_of(beginning: dict) -> str:
    parts = {**beginning["layout"], "B": beginning["batch"]}
    return "began in " + ",".join(f"{symbol}={value}" for symbol, value in parts.items())


if __name__ == "__main__":
    sys.exit(main())
