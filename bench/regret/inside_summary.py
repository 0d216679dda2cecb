#!/usr/bin/env python3
"""Prints the table of inside.md from the rows in data/FOLDER.

Usage: inside_summary.py [FOLDER], by default inside
"""

import json
import pathlib
import statistics
import sys

DATA = pathlib.Path(__file__).parent / "data" / (sys.argv[1] if len(sys.argv) > 1 else "inside")


def rows_of(group: str, budget: str, policy: str = "copus") -> dict[int, dict]:
    rows = map(json.loads, (DATA / f"{group}-{budget}.jsonl").read_text().splitlines())
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


print("| group | budget | runs | mean | median | 95th percentile | worst | calibrations | most re-layouts "
      "| > 2.5 % slower than the start |")
print("|---|---|---|---|---|---|---|---|---|---|")
for budget in ("0", "0.01"):
    both = [], []
    for group in ("by-prior", "held-back"):
        runs, starts = rows_of(group, budget), rows_of(group, "0", "static")
        pair = list(runs.values()), [starts[number] for number in runs]
        print_row(group, budget, *pair)
        for all_rows, rows in zip(both, pair):
            all_rows += rows
    print_row("both", budget, *both)
