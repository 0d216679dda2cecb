#!/usr/bin/env python3
"""Prints the table of draws.md from the rows in data/draws.

Usage: draws_summary.py
"""

import json
import math
import pathlib
import statistics

DATA = pathlib.Path(__file__).parent / "data/draws"


def rows_of(rule: str) -> dict[int, dict]:
    rows = [json.loads(line) for path in DATA.glob(f"{rule}-*.jsonl") for line in path.read_text().splitlines()]
    return {row["scenario"]: row for row in rows}


def slower_than(rows: dict[int, dict], starts: dict[int, dict]) -> int:
    return sum((1 + row["slowdown"]) / (1 + starts[number]["slowdown"]) > 1.025 for number, row in rows.items())


starts, mean = rows_of("start"), rows_of("mean")
print("| rule | runs | mean | median | 95th percentile | worst | > 2.5 % slower than the start "
      "| changes of the batch |")
print("|---|---|---|---|---|---|---|---|")
for rule in ("mean", "draws", "average", "unmeasured", "held", "start"):
    rows = rows_of(rule)
    slowdowns = sorted(100 * row["slowdown"] for row in rows.values())
    print(f"| {rule} | {len(rows)} | {statistics.mean(slowdowns):.1f} % | {statistics.median(slowdowns):.1f} % | "
          f"{slowdowns[int(0.95 * len(rows))]:.1f} % | {slowdowns[-1]:.0f} % | {slower_than(rows, starts)} | "
          f"{statistics.mean(row['batch_changes'] for row in rows.values()):.1f} |")
for rule in ("draws", "average"):
    rows = rows_of(rule)
    differences = [100 * (row["slowdown"] - mean[number]["slowdown"]) for number, row in rows.items()]
    error = 1.96 * statistics.stdev(differences) / math.sqrt(len(differences))
    print(f"{rule} less mean: {statistics.mean(differences):+.2f} points, give or take {error:.2f}; faster in "
          f"{sum(value < 0 for value in differences)}, slower in {sum(value > 0 for value in differences)}; "
          f"without the largest {statistics.mean(sorted(differences)[:-1]):+.2f}")
