#!/usr/bin/env python3
"""Turns the object of `copus bench regret --json` on stdin into a line of JSON for each run on stdout.

Usage: rows.py GROUP [--calibrated]
"""

import json
import sys

group, calibrated = sys.argv[1], "--calibrated" in sys.argv[2:]
for rule in json.load(sys.stdin)["rules"]:
    for outcome in rule["outcomes"]:
        row = {"group": group, "calibrated": calibrated, "policy": rule["policy"], **outcome}
        row["slowdown"] = round(row["slowdown"], 5)
        for name in ("clairvoyant_slowdown", "pause_share"):
            row[name] = round(row[name], 5)
        print(json.dumps(row))
