#!/usr/bin/env bash
# Simulates the runs of inside.md and keeps a row for each in data/FOLDER.
# Usage: inside.sh PATH_TO_COPUS [FIRST_SCENARIO SCENARIOS FOLDER [GROUP [OPTIONS]]], by default 300 16 inside, both
# groups, and --set adapt.interval_samples=131072 as the options of `copus bench regret`
set -euo pipefail
program=$1
first=${2:-300} scenarios=${3:-16}
data=$(dirname "$0")/data/${4:-inside}
options=("${@:6}")
[ ${#options[@]} -gt 0 ] || options=(--set adapt.interval_samples=131072)
mkdir -p "$data"
for group in ${5:-by-prior held-back}; do
  for budget in 0.01 0; do
    policies="copus static"
    [ $budget = 0.01 ] && policies=copus
    "$program" bench regret --group $group --first "$first" --scenarios "$scenarios" --whole-steps 640000 --policy $policies \
      "${options[@]}" --set adapt.explore_budget=$budget --json |
      python3 "$(dirname "$0")/rows.py" "$group" > "$data/$group-$budget.jsonl.new"
    mv "$data/$group-$budget.jsonl.new" "$data/$group-$budget.jsonl"
  done
done
