#!/usr/bin/env bash
# Fetches the source of Python's standard library as plain text into a directory: train.txt and held_out.txt (every
# fiftieth top-level block). Blocks end at "\n\n\n". Needs apt-get, dpkg-deb and python3, no root.
set -euo pipefail
output="${1:?usage: fetch_python.sh OUT_DIR}"
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
(cd "$work" && apt-get -q -o APT::Sandbox::User="$(id -un)" download libpython3.11-stdlib &&
  dpkg-deb -x libpython3.11-stdlib_*.deb unpacked)
python3 "$here/clean_python.py" "$work/unpacked" "$output"
