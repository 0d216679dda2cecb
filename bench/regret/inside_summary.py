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


print("| group | budget | runs | mean | median | worst | calibrations | > 2.5 % slower than the start |")
print("|---|---|---|---|---|---|---|---|")
for group in ("by-prior", "held-back"):
    starts = rows_of(group, "0", "static")
    for budget in ("0", "0.01"):
        runs = rows_of(group, budget)
        slowdowns = [100 * run["slowdown"] for run in runs.values()]
        slower = sum((1 + run["slowdown"]) / (1 + starts[number]["slowdown"]) > 1.025 for number, run in runs.items())
        print(f"| {group} | {budget} | {len(runs)} | {statistics.mean(slowdowns):.1f} % | "
              f"{statistics.median(slowdowns):.1f} % | {max(slowdowns):.1f} % | "
              f"{statistics.mean(run['calibrations'] for run in runs.values()):.1f} | {slower} |")
