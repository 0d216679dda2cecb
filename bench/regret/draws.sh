#!/usr/bin/env bash
# Simulates runs of draws.md with one rule and keeps a row for each in data/draws; chunks that exist are not repeated.
# Usage: draws.sh RULE PATH_TO_COPUS QUESTIONS, where RULE names the program's rule in the files, and QUESTIONS are some
# of "by-prior", "held-back", "unmeasured" and "inside".
set -euo pipefail
rule=$1 program=$2
here=$(dirname "$0")
mkdir -p "$here/data/draws"

# Usage: simulate NAME GROUP FIRST COUNT OPTION ...
simulate() {
  local name=$1 group=$2 first=$3 count=$4 file
  shift 4
  file="$here/data/draws/$name-$group-$first.jsonl"
  [ -e "$file" ] && return
  "$program" bench regret --group "$group" --first "$first" --scenarios "$count" --json "$@" |
    python3 "$here/rows.py" "$group" > "$file.new"
  mv "$file.new" "$file"
}

for question in $3; do
  case $question in
    by-prior)
      for first in 400 425 450 475; do
        simulate "measured-$rule" by-prior $first 25 --calibrated
        simulate start by-prior $first 25 --policy static
      done ;;
    held-back)
      for first in 400 425; do
        simulate "measured-$rule" held-back $first 25 --calibrated
        simulate start held-back $first 25 --policy static
      done ;;
    unmeasured)
      for first in 400 425; do
        simulate unmeasured-noise by-prior $first 25
        simulate unmeasured-held by-prior $first 25 --set 'adapt.hold_in=["warm-up", "main", "decay"]'
      done ;;
    inside)
      for group in by-prior held-back; do
        for first in 400 408; do
          simulate "inside-$rule" $group $first 8 --whole-steps 160000 --set adapt.interval_samples=131072 \
            --set adapt.explore_budget=0.04
        done
      done ;;
  esac
done
