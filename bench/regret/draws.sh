#!/usr/bin/env bash
# Simulates the runs of draws.md with one program and keeps a row for each in data/draws. Chunks that exist are not
# repeated. Usage: draws.sh RULE PATH_TO_COPUS GROUP, where RULE names the program's rule in the files: "mean", "draws".
set -euo pipefail
rule=$1 program=$2 group=$3
here=$(dirname "$0")
mkdir -p "$here/data/draws"
for first in 400 425 450 475; do
  [ "$group" = held-back ] && [ $first -ge 450 ] && continue
  for name in "$rule" start; do
    options=--calibrated
    [ "$name" = start ] && options="--policy static"
    file="$here/data/draws/$name-$group-$first.jsonl"
    [ -e "$file" ] && continue
    # shellcheck disable=SC2086
    "$program" bench regret --group "$group" --first $first --scenarios 25 --set adapt.interval_samples=16384 --json \
      $options | python3 "$here/rows.py" "$group" ${options/#--policy*/} > "$file.new"
    mv "$file.new" "$file"
  done
done
