#!/usr/bin/env bash
# Simulates the runs of inside.md and keeps a row for each in data/. Usage: inside.sh PATH_TO_COPUS
set -euo pipefail
program=$1
data=$(dirname "$0")/data/inside
mkdir -p "$data"
for group in by-prior held-back; do
  for budget in 0.01 0; do
    policies="copus static"
    [ $budget = 0.01 ] && policies=copus
    "$program" bench regret --group $group --first 300 --scenarios 16 --whole-steps 640000 --policy $policies \
      --set adapt.interval_samples=131072 --set adapt.explore_budget=$budget --json |
      python3 "$(dirname "$0")/rows.py" "$group" > "$data/$group-$budget.jsonl.new"
    mv "$data/$group-$budget.jsonl.new" "$data/$group-$budget.jsonl"
  done
done
