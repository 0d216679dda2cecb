#!/usr/bin/env bash
# Fetches the two corpora of sandwich.md into data/: the King James Bible, and the manual pages of Perl. Every fiftieth
# document is held out. Needs apt-get, dpkg-deb, python3 and pip, no root.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
root="$(cd "$here/../.." && pwd)"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
"$root/scripts/fetch-corpus" "$work/bible" --bible
(cd "$work" && apt-get -q -o APT::Sandbox::User="$(id -un)" download perl-doc && dpkg-deb -x perl-doc_*.deb perl)
python3 - "$here" "$work" "$root/data" <<'PYTHON'
import pathlib
import sys

sys.path.insert(0, sys.argv[1])
from split_documents import split_documents

work, data = pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
bible = (work / "bible" / "train.txt").read_text(encoding="utf-8").split("\n\n\n")
split_documents([text.strip("\n") for text in bible if text.strip()], data / "bible")
pages = []
for path in sorted((work / "perl").rglob("*.pod")):
    sections = path.read_text(encoding="utf-8", errors="replace").split("\n=head")
    pages += [text.strip("\n") for text in sections if text.strip()]
split_documents(pages, data / "perl")
PYTHON
