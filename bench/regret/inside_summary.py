#!/usr/bin/env python3
"""Prints the table of inside.md from the rows in data/FOLDER.

Usage: inside_summary.py [FOLDER [FOLDER_BEFORE...]], by default inside. With FOLDER_BEFORE, which has rows of another
program, also prints its table and the change of each run.
"""

import json
import pathlib
import statistics
import sys

DATA = pathlib.Path(__file__).parent / "data"
GROUPS = "by-prior", "held-back"


def rows_of(folder: str, group: str, budget: str, policy: str = "copus") -> dict[int, dict]:
    """Returns the runs by scenario, in the order of the scenarios; none if there is no such file."""
    file = DATA / folder / f"{group}-{budget}.jsonl"
    rows = map(json.loads, file.read_text().splitlines()) if file.exists() else ()
    return {row["scenario"]: row for row in rows if row["policy"] == policy}


def percentile(values: list[float], share: float) -> float:
    """Returns a percentile, interpolated between the two nearest values."""
    return statistics.quantiles(values, n=100, method="inclusive")[round(100 * share) - 1]


def print_row(group: str, budget: str, runs: list[dict], starts: list[dict]) -> None:
    slowdowns = [100 * run["slowdown"] for run in runs]
    slower = sum((1 + run["slowdown"]) / (1 + start["slowdown"]) > 1.025 for run, start in zip(runs, starts))
    print(f"| {group} | {budget} | {len(runs)} | {statistics.mean(slowdowns):.1f} % | "
          f"{statistics.median(slowdowns):.1f} % | {percentile(slowdowns, 0.95):.1f} % | {max(slowdowns):.1f} % | "
          f"{statistics.mean(run['calibrations'] for run in runs):.1f} | {max(run['relayouts'] for run in runs):.0f} | "
          f"{slower} |")


def print_table(folder: str, folder_of_starts: str) -> None:
    print("| group | budget | runs | mean | median | 95th percentile | worst | calibrations | most re-layouts "
          "| > 2.5 % slower than the start |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for budget in ("0", "0.01"):
        both = [], []
        for group in GROUPS:
            runs, starts = rows_of(folder, group, budget), rows_of(folder_of_starts, group, "0", "static")
            if not runs:
                continue
            pair = list(runs.values()), [starts[number] for number in runs]
            print_row(group, budget, *pair)
            for all_rows, rows in zip(both, pair):
                all_rows += rows
        if both[0]:
            print_row("both", budget, *both)


def print_change(after: str, before: str) -> None:
    for groups in (*((group,) for group in GROUPS), GROUPS):
        changes = []
        for group in groups:
            runs, runs_before = rows_of(after, group, "0.01"), rows_of(before, group, "0.01")
            changes += [100 * (run["slowdown"] - runs_before[number]["slowdown"]) for number, run in runs.items()]
        # Student's quantile for 100 and 200 pairs is 1.98 and 1.97.
        half = 1.98 * statistics.stdev(changes) / len(changes) ** 0.5
        mean = statistics.mean(changes)
        print(f"{' and '.join(groups)}: {mean:+.2f} points ({mean - half:+.2f} to {mean + half:+.2f}); "
              f"{sum(change < -1 for change in changes)} runs faster by more than 1 point, "
              f"{sum(change > 1 for change in changes)} slower")


def main() -> None:
    folder, *before = sys.argv[1:] or ["inside"]
    print_table(folder, folder)
    for other in before:
        print()
        print_table(other, folder)
        print()
        print_change(folder, other)


main()
