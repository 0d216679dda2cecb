#!/usr/bin/env python3
"""Turns Python sources into plain text: one document for each top-level block of a file. Two blank lines separate
blocks.

Usage: clean_python.py DIRECTORY OUT_DIR
"""

import pathlib
import sys

from split_documents import split_documents


def main() -> None:
    documents = []
    for path in sorted(path for path in pathlib.Path(sys.argv[1]).rglob("*.py") if path.is_file()):
        blocks = path.read_text(encoding="utf-8", errors="replace").split("\n\n\n")
        documents += [block.strip("\n") for block in blocks if block.strip()]
    split_documents(documents, pathlib.Path(sys.argv[2]))


if __name__ == "__main__":
    main()
