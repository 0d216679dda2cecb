#!/usr/bin/env python3
"""Prints the tables of README.md from the rows in data/.

Usage: summary.py
"""

import json
import pathlib
import statistics

rows = [json.loads(line) for path in sorted((pathlib.Path(__file__).parent / "data").glob("*.jsonl"))
        for line in path.read_text().splitlines()]
starts = {(row["group"], row["scenario"]): 1 + row["slowdown"] for row in rows if row["policy"] == "static"}
print("| group | critical batch | runs | mean | median | 95th percentile | worst | most re-layouts "
      "| > 2.5 % slower than the start |")
print("|---|---|---|---|---|---|---|---|---|")
for group in ("by-prior", "held-back"):
    for calibrated in (False, True):
        chosen = [row for row in rows
                  if (row["group"], row["calibrated"], row["policy"]) == (group, calibrated, "copus")]
        slowdowns = sorted(100 * row["slowdown"] for row in chosen)
        count = len(slowdowns)
        if not count:
            continue
        worse = sum((1 + row["slowdown"]) / starts[group, row["scenario"]] > 1.025 for row in chosen)
        print(f"| {group} | {'measured' if calibrated else 'c phi'} | {count} | {statistics.mean(slowdowns):.1f} % "
              f"| {statistics.median(slowdowns):.1f} % | {slowdowns[int(0.95 * count)]:.1f} % | {slowdowns[-1]:.0f} % "
              f"| {max(row['relayouts'] for row in chosen)} | {100 * worse / count:.1f} % |")
        families = sorted({row["worth"] for row in chosen})
        print("  " + ", ".join(
            f"{family} {100 * statistics.mean(row['slowdown'] for row in chosen if row['worth'] == family):.1f} % "
            f"({sum(row['worth'] == family for row in chosen)})" for family in families))
