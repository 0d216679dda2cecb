#!/usr/bin/env bash
# Fetches WordNet's definitions as plain text into a directory: train.txt and held_out.txt (every fiftieth entry).
# Entries end at "\n\n\n". Needs apt-get, dpkg-deb and python3, no root.
set -euo pipefail
output="${1:?usage: fetch_wordnet.sh OUT_DIR}"
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
(cd "$work" && apt-get -q -o APT::Sandbox::User="$(id -un)" download dict-wn && dpkg-deb -x dict-wn_*.deb unpacked)
python3 "$here/clean_wordnet.py" "$work/unpacked/usr/share/dictd/wn.dict.dz" "$output"
