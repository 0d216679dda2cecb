#!/usr/bin/env python3
"""Does the noise scale that training measures agree with a slow reference? Trains the quickstart's model with every
pair of a global batch and a learning rate, always on the same samples, and keeps three checkpoints of each run. At each
checkpoint it measures the noise scale with `copus gns`, and with training's own probe at fixed weights. It writes into
the folder --out:

  results.json      settings, curves, and what was measured at each checkpoint
  results.md        a table of the three estimates, side by side, with intervals
  noise-scale.svg   the online curves with their bands, and the points of the other two estimates

Takes about 25 minutes on two cores. Finished parts are kept: after an interruption the same command continues. Another
experiment needs another --out. The corpus must exist: scripts/fetch-corpus data/gcide
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

import figure
import held_still

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
CHECKPOINTS = 3  # of each run, evenly spaced, the last one at its end
HELD_STILL = 1e-12  # the learning rate; weight decay is multiplied by it
INTERVAL = ("noise_scale", "noise_scale_low", "noise_scale_high")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--copus", default="build/copus")
    parser.add_argument("--out", default="runs/noise-scale", help="folder of runs and results (default: %(default)s)")
    parser.add_argument("--batches", nargs="+", type=int, default=[8, 32], help="global batches, in sequences")
    parser.add_argument("--lr", nargs="+", type=float, default=[3e-3, 7.5e-4], help="learning rates")
    parser.add_argument("--samples", type=int, default=9216, help="sequences of each run (default: %(default)s)")
    parser.add_argument("--micro-batch", type=int, default=4)
    parser.add_argument("--window-samples", type=int, default=1024,
                        help="of the online averages: 32 steps at least, a quarter of the run so far at most "
                             "(default: %(default)s)")
    parser.add_argument("--reference-batches", type=int, default=24,
                        help="batches of the reference at each checkpoint (default: %(default)s)")
    parser.add_argument("--held-samples", type=int, default=512,
                        help="sequences with the weights held still, at each checkpoint (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=0, help="0: all cores")
    parser.add_argument("--config", default="configs/runs/quickstart.toml")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="more settings, of all runs")
    arguments = parser.parse_args()
    for batch in arguments.batches:
        if batch % arguments.micro_batch != 0 or arguments.samples % (CHECKPOINTS * batch) != 0:
            parser.error(f"a global batch of {batch} must be a multiple of --micro-batch {arguments.micro_batch}, and "
                         f"{CHECKPOINTS} times it must divide --samples {arguments.samples}")
        if arguments.held_samples % batch != 0 or arguments.held_samples < 2 * batch:
            parser.error(f"--held-samples {arguments.held_samples} must be two or more global batches of {batch}")
    return arguments


def run_name(batch: int, learning_rate: float) -> str:
    return f"batch-{batch}-lr-{learning_rate:g}"


def train_command(arguments: argparse.Namespace, batch: int, learning_rate: float) -> list[str]:
    steps = arguments.samples // batch
    settings = {
        "train.global_batch": batch,
        "train.micro_batch": arguments.micro_batch,
        "train.max_steps": steps,
        "train.max_seconds": 0,
        "train.precision": "fp32",
        "train.threads": arguments.threads,
        "optimizer.lr": learning_rate,
        "optimizer.schedule": "constant",
        "noise_scale.window_samples": arguments.window_samples,
        "evaluate.interval": 0,
        "evaluate.max_batches": 64,
        "data.mask_across_documents": "false",
        "checkpoint.interval": steps // CHECKPOINTS,
        "checkpoint.keep_last": 100,  # also checkpoints from interruptions
    }
    return [arguments.copus, "train", arguments.config, *overrides(settings), *overrides(arguments.set)]


def overrides(settings: dict | list[str]) -> list[str]:
    """Formats settings, a dictionary or KEY=VALUE, for the command line."""
    pairs = [f"{key}={value}" for key, value in settings.items()] if isinstance(settings, dict) else settings
    return [word for pair in pairs for word in ("--set", pair)]


def call(command: list[str]) -> str:
    """The command's standard output; ends the program if the command fails."""
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            output, errors = process.communicate()
        except KeyboardInterrupt:
            process.wait()  # it received Ctrl-C as well, and writes a checkpoint
            sys.exit("interrupted; the same command goes on")
    if process.returncode != 0:
        sys.exit(f"{' '.join(command)}\nended with {process.returncode}:\n{output[-2000:]}{errors}")
    return output


def write_whole(path: pathlib.Path, text: str) -> None:
    """Writes the file atomically: a reader sees all of it or none."""
    path.with_suffix(".partial").write_text(text)
    path.with_suffix(".partial").rename(path)


def is_done(directory: pathlib.Path) -> bool:
    summary = directory / "summary.json"
    return summary.exists() and json.loads(summary.read_text())["ended"] == "done"


def train(directory: pathlib.Path, command: list[str]) -> None:
    """Starts or resumes a run."""
    if not is_done(directory):
        call(command + ["--run-dir", str(directory), "--resume"])


def reference(arguments: argparse.Namespace, checkpoint: pathlib.Path, path: pathlib.Path) -> dict:
    """The result of `copus gns` at a checkpoint, kept in `path`."""
    if not path.exists():
        write_whole(path, call([arguments.copus, "gns", "--checkpoint", str(checkpoint), "--batches",
                                str(arguments.reference_batches), "--threads", str(arguments.threads), "--json"]))
    return json.loads(path.read_text())


def held(arguments: argparse.Namespace, checkpoint: pathlib.Path, directory: pathlib.Path, last_step: int) -> dict:
    """The measurements of training that resumes from a checkpoint, in `directory`, with fixed weights."""
    if not is_done(directory):
        shutil.rmtree(directory, ignore_errors=True)
        shutil.copytree(checkpoint, directory / "checkpoints" / checkpoint.name)
        shutil.copy(checkpoint / "config.toml", directory)
        settings = {
            "optimizer.lr": HELD_STILL,
            "train.max_steps": last_step,
            "train.threads": arguments.threads,
            "evaluate.max_batches": 1,  # at least one is required, at the end
            "checkpoint.interval": 0,
        }
        call([arguments.copus, "train", "--resume", "--run-dir", str(directory), *overrides(settings)])
    shutil.rmtree(directory / "checkpoints", ignore_errors=True)  # the weights are those of the run's checkpoint
    return held_still.noise_scale(read_log(directory))


def read_log(directory: pathlib.Path) -> list[dict]:
    return [json.loads(line) for line in (directory / "run.jsonl").read_text().splitlines()]


def overlap(one: dict, other: dict) -> bool | None:
    """Whether two intervals overlap. An upper end of None is infinite; None if a lower end is unknown."""
    if one["noise_scale_low"] is None or other["noise_scale_low"] is None:
        return None

    def high(interval: dict) -> float:
        return float("inf") if interval["noise_scale_high"] is None else interval["noise_scale_high"]

    return one["noise_scale_low"] <= high(other) and other["noise_scale_low"] <= high(one)


def results_of(arguments: argparse.Namespace, out: pathlib.Path, batch: int, learning_rate: float) -> dict:
    name = run_name(batch, learning_rate)
    directory = out / name
    records = read_log(directory)
    summary = json.loads((directory / "summary.json").read_text())
    checkpoints = []
    for part in range(1, CHECKPOINTS + 1):
        step = part * len(records) // CHECKPOINTS
        folder = directory / "checkpoints" / f"step-{step:08d}"
        started = time.monotonic()
        offline = reference(arguments, folder, out / f"{name}-{folder.name}.json")
        still = held(arguments, folder, directory / f"held-{step}", step + arguments.held_samples // batch)
        print(f"  {folder.name}: reference {interval_text(offline)}, held still {interval_text(still)}  "
              f"({time.monotonic() - started:.0f} s)", flush=True)
        record = records[step - 1]
        online = {key: record[key] for key in INTERVAL}
        checkpoints.append({"step": record["step"], "consumed_samples": record["consumed_samples"],
                            "loss": record["loss"], "online": online, "held_still": still, "reference": offline,
                            "overlap": overlap(online, offline), "overlap_held_still": overlap(still, offline)})
    return {"name": name, "global_batch": batch, "lr": learning_rate, "held_out_loss": summary["held_out_loss"],
            "train_seconds": summary["train_seconds"], "tokens_per_second": summary["tokens_per_second"],
            "checkpoints": checkpoints,
            "curve": [{key: record[key] for key in ("step", "consumed_samples", *INTERVAL)} for record in records]}


def interval_text(measured: dict) -> str:
    value, low, high = (measured[key] for key in INTERVAL)
    if low is None:
        return "-"
    return f"above {low:.3g}" if value is None else f"{value:.3g} ({low:.3g} .. {high:.3g})"


def markdown(results: list[dict]) -> str:
    heads = ["global batch", "learning rate", "samples seen", "online (95 % interval)", "online, weights held still",
             "reference", "reference meets online", "meets held still"]
    meets = {True: "yes", False: "no", None: "-"}
    rows = [heads, ["---"] * len(heads)]
    for run in results:
        for point in run["checkpoints"]:
            measured = [interval_text(point[kind]) for kind in ("online", "held_still", "reference")]
            rows.append([str(run["global_batch"]), f"{run['lr']:g}", f"{point['consumed_samples']:,}", *measured,
                         meets[point["overlap"]], meets[point["overlap_held_still"]]])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def processor() -> str:
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "unknown"


def main() -> None:
    arguments = parse_arguments()
    arguments.copus = str(pathlib.Path(arguments.copus).resolve())
    if not pathlib.Path(arguments.copus).exists():
        sys.exit(f"{arguments.copus} does not exist; build it first (make build), or name it with --copus")
    out = pathlib.Path(arguments.out).resolve()
    out.mkdir(parents=True, exist_ok=True)

    settings = {key: value for key, value in vars(arguments).items() if key not in ("copus", "out", "threads")}
    kept = out / "settings.json"
    if kept.exists() and json.loads(kept.read_text()) != settings:
        sys.exit(f"{out} holds another experiment ({kept.read_text()}); name another folder with --out, or delete it")
    write_whole(kept, json.dumps(settings))

    results = []
    for learning_rate in arguments.lr:
        for batch in arguments.batches:
            name = run_name(batch, learning_rate)
            print(f"{name}: {'already trained' if is_done(out / name) else 'training'}", flush=True)
            train(out / name, train_command(arguments, batch, learning_rate))
            results.append(results_of(arguments, out, batch, learning_rate))

    write_whole(out / "results.json", json.dumps({
        "settings": settings, "processor": processor(), "cores": len(os.sched_getaffinity(0)), "runs": results}))
    write_whole(out / "results.md", markdown(results))
    write_whole(out / "noise-scale.svg", figure.draw(results))
    print(f"\n{markdown(results)}\nresults.json, results.md and noise-scale.svg are in {out}")


if __name__ == "__main__":
    main()
