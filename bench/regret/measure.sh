#!/bin/sh
# Simulates the runs of README.md and writes their rows to data/. Usage: bench/regret/measure.sh [build/copus]
set -eu
program=${1:-build/copus}
data=$(dirname "$0")/data
mkdir -p "$data"
for group in by-prior held-back; do
  for calibrated in "" --calibrated; do
    policies="copus static"
    [ -n "$calibrated" ] && policies=copus
    "$program" bench regret --group $group --scenarios 200 --policy $policies $calibrated --json |
      python3 "$(dirname "$0")/rows.py" "$group" "$calibrated" > "$data/$group$calibrated.jsonl.new"
    mv "$data/$group$calibrated.jsonl.new" "$data/$group$calibrated.jsonl"
  done
done
