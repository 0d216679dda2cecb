#!/usr/bin/env python3
"""What happens to runs that start with settings copied from other trainers' examples? Simulated, not measured.

    bench/evaluation/starts/starts.py run [--program build/copus] [--draws FIRST-LAST]
    bench/evaluation/starts/starts.py table

README.md in this folder states what is judged. `run` simulates draw by draw, one run after the other, and appends each
arm to results/rows.jsonl. It skips rows that this file already has, so it may be interrupted. After a change of the
program, delete results/rows.jsonl. `table` prints the tables of docs/evaluation.md.
"""

import argparse
import itertools
import json
import math
import pathlib
import statistics
import subprocess
import sys

FOLDER = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER.parent))
from law import law_settings  # noqa: E402
from table import mean_and_width  # noqa: E402

ROWS = FOLDER / "results/rows.jsonl"
RUN = "bench/evaluation/starts/run.toml"
POLICIES = {"start": "static", "planned": "static-best", "copus": "copus"}  # of the arms that share a simulation
ARMS = ("start", "planned", "law", "copus")

H100 = {"cluster": "h100-sxm"}
LLAMA_1B = {"model": "llama-3.2-1b", "sequence_length": 2048, "tokens": 2e9}
SEQUENCE_PARALLEL = {"parallel.sequence_parallel": "true"}
# The job with its tokens, and the settings in which a start differs from a layout of 1 rank; batches are in sequences.
STARTS = {
    "1B on 8 H100": (
        {**LLAMA_1B, **H100, "gpus": 8},
        {"parallel.data_parallel": 8, "train.global_batch": 256}),
    "3B on 8 H100": (
        {"model": "llama-3.2-3b", "sequence_length": 2048, "tokens": 2e9, **H100, "gpus": 8},
        {"parallel.tensor_parallel": 8, **SEQUENCE_PARALLEL, "train.global_batch": 256}),
    "8B on 64 H100": (
        {"model": "llama-3.1-8b", "sequence_length": 8192, "tokens": 2e9, **H100, "gpus": 64},
        {"parallel.data_parallel": 64, "parallel.zero_stage": 3, "train.recompute": "full", "train.global_batch": 64}),
    "13B on 16 H100": (
        {"model": "llama-2-13b", "sequence_length": 4096, "tokens": 10e9, **H100, "gpus": 16},
        {"parallel.data_parallel": 2, "parallel.tensor_parallel": 8, "parallel.zero_stage": 1, **SEQUENCE_PARALLEL,
         "train.global_batch": 1024}),
    "32B on 32 H100": (
        {"model": "qwen2.5-32b", "sequence_length": 4096, "tokens": 10e9, **H100, "gpus": 32},
        {"parallel.tensor_parallel": 8, "parallel.pipeline_parallel": 4, **SEQUENCE_PARALLEL,
         "train.global_batch": 1024}),
    "1B on 32 A100, slow links": (
        {**LLAMA_1B, "cluster": "a100-4x100g", "gpus": 32},
        {"parallel.data_parallel": 32, "train.global_batch": 256}),
}
# The laws by which the critical batch truly grows.
TRUTHS = ("kaplan", "bergsma")


def batches_of(start: dict) -> list[int]:
    """Returns the candidate batches, for all arms those that Copus has by default."""
    return [start["train.global_batch"] * 2**i // 4 for i in range(9)]


def simulate(program: str, job: dict, truth: str, draw: int, settings: list[str], policies: list[str]) -> dict:
    settings = [f"cluster.config={job['cluster']}", f"cluster.stands_for={job['model']}",
                f"cluster.stands_for_sequence_length={job['sequence_length']}", f"cluster.truth_seed={draw}",
                f"train.seed={draw}", *settings]
    command = [program, "simulate", RUN, "--json", "--policy", *policies, "--law", truth,
               "--tokens", str(job["tokens"]),
               *(argument for setting in settings for argument in ("--set", setting))]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        sys.exit(f"{' '.join(command)}: {result.stderr}")
    return json.loads(result.stdout)


def rows_of(simulated: dict, name: dict, arms: dict) -> list[dict]:
    """Returns a raw row of each arm: how its run went, and its seconds and tokens to the last loss."""
    end = simulated["targets"][-1]
    rows = []
    for arm, policy in arms.items():
        run = next(one for one in simulated["policies"] if one["policy"] == policy)
        kept = {key: run[key] for key in ("steps", "relayouts", "batch_changes", "pause_seconds", "last")}
        reached = {key: run["targets"][-1][key] for key in ("loss", "seconds", "tokens")}
        rows.append({**name, "arm": arm, **reached, **kept, "critical_batch": end["critical_batch"],
                     "best_static": end["best_static"], "clairvoyant_seconds": end["clairvoyant_seconds"]})
    return rows


def read_rows() -> list[dict]:
    return [json.loads(line) for line in ROWS.read_text().splitlines()] if ROWS.exists() else []


def append(rows: list[dict]) -> None:
    ROWS.parent.mkdir(exist_ok=True)
    with ROWS.open("a") as file:
        file.write("".join(json.dumps(one) + "\n" for one in rows))


def run(program: str, draws: range) -> None:
    done = {(one["truth"], one["draw"], one["start"], one["arm"]) for one in read_rows()}
    for draw, truth in itertools.product(draws, TRUTHS):
        for start, (job, begins) in STARTS.items():
            name = {"truth": truth, "draw": draw, "start": start}
            if (truth, draw, start, "copus") not in done:
                settings = [f"{key}={value}" for key, value in {"train.micro_batch": 1, **begins}.items()]
                simulated = simulate(program, job, truth, draw, settings, list(POLICIES.values()))
                append(rows_of(simulated, name, POLICIES))
            if (truth, draw, start, "law") not in done:
                settings = law_settings(program, job, batches_of(begins), job["tokens"])
                batches = f"adapt.global_batches={json.dumps(batches_of(begins))}"
                simulated = simulate(program, job, truth, draw, [*settings, batches], ["steps"])
                append(rows_of(simulated, {**name, "settings": settings}, {"law": "steps"}))


def ratios(rows: list[dict], truth: str, start: str) -> dict:
    """Returns by arm and draw the seconds divided by the seconds of the static run that was best in hindsight. That run
    is chosen among Copus's candidates, which include the start."""
    of_start = {(one["arm"], one["draw"]): one for one in rows if (one["truth"], one["start"]) == (truth, start)}
    return {arm: {draw: one["seconds"] / of_start["copus", draw]["best_static"]["seconds"]
                  for (name, draw), one in of_start.items() if name == arm and ("copus", draw) in of_start}
            for arm in ARMS}


def interval(logarithms: list[float]) -> str:
    mean, width = mean_and_width(logarithms)
    return f"{math.exp(mean):.3f} ({math.exp(mean - width):.3f} to {math.exp(mean + width):.3f})"


def median_and_worst(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({max(values):.2f})"


def print_tables(rows: list[dict]) -> None:
    found = {truth: {start: ratios(rows, truth, start) for start in STARTS} for truth in TRUTHS}
    draws = sorted(set.intersection(
        *(set(by_draw) for starts in found.values() for arms in starts.values() for by_draw in arms.values())))
    if len(draws) < 2:
        sys.exit("fewer than two draws are complete")
    print(f"Draws {draws[0]} to {draws[-1]}. Time / best static run of hindsight, {' / '.join(TRUTHS)}: median (worst)")
    print()
    print(f"| start | {' | '.join(ARMS)} |")
    print("|---" * (len(ARMS) + 1) + "|")
    for start in STARTS:
        cells = [" / ".join(median_and_worst([found[truth][start][arm][draw] for draw in draws]) for truth in TRUTHS)
                 for arm in ARMS]
        print(f"| {start} | {' | '.join(cells)} |")
    for truth, starts in found.items():
        others = [arm for arm in ARMS if arm != "copus"]
        print(f"\nTruth {truth}: time of copus / other arm (95 %)\n")
        print(f"| start | {' | '.join(others)} |")
        print("|---" * (len(others) + 1) + "|")
        logarithms = {start: {other: [math.log(arms["copus"][draw] / arms[other][draw]) for draw in draws]
                              for other in others} for start, arms in starts.items()}
        for start, by_other in logarithms.items():
            print(f"| {start} | {' | '.join(interval(by_other[other]) for other in others)} |")
        by_draw = {other: [statistics.mean(of_start[other][i] for of_start in logarithms.values())
                           for i in range(len(draws))] for other in others}
        print(f"| all | {' | '.join(interval(by_draw[other]) for other in others)} |")
        for arm in ARMS:
            everything = [arms[arm][draw] for arms in starts.values() for draw in draws]
            behind = sum(one > 1.01 for one in everything)
            print(f"\n{arm}: more than 1 % behind the best static run in {behind} of {len(everything)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["run", "table"])
    parser.add_argument("--program", default="build/copus")
    parser.add_argument("--draws", default="1-20")
    options = parser.parse_args()
    if options.what == "table":
        print_tables(read_rows())
    else:
        first, last = map(int, options.draws.split("-"))
        run(options.program, range(first, last + 1))


if __name__ == "__main__":
    main()
