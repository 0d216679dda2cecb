#!/usr/bin/env bash
# Simulates the runs of draws.md with one program and keeps a row for each in data/draws. Files that exist are not made
# again. Usage: draws.sh RULE PATH_TO_COPUS, where RULE names the program's rule in the files: "mean" for the mean law.
set -euo pipefail
rule=$1 program=$2
here=$(dirname "$0")
mkdir -p "$here/data/draws"

# Usage: simulate NAME FIRST OPTION ...
simulate() {
  local name=$1 first=$2 file
  file="$here/data/draws/$name-by-prior-$first.jsonl"
  shift 2
  [ -e "$file" ] && return
  "$program" bench regret --group by-prior --first "$first" --scenarios 25 --set adapt.interval_samples=16384 --json \
    "$@" | python3 "$here/rows.py" by-prior $([ "$1" = --calibrated ] && echo "$1") > "$file.new"
  mv "$file.new" "$file"
}

for first in 400 425 450 475; do
  simulate "$rule" $first --calibrated
  [ "$rule" = mean ] || continue
  simulate start $first --policy static
  [ $first -lt 450 ] || continue
  simulate unmeasured $first --policy copus
  simulate held $first --set 'adapt.hold_in=["warm-up", "main", "decay"]'
done
