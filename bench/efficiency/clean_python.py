#!/usr/bin/env python3
"""Turns Python sources into plain text: one document for each top-level block of a file, what two blank lines part.

Usage: clean_python.py DIRECTORY OUT_DIR
"""

import pathlib
import sys


def main() -> None:
    output = pathlib.Path(sys.argv[2])
    output.mkdir(parents=True, exist_ok=True)
    documents = []
    for path in sorted(path for path in pathlib.Path(sys.argv[1]).rglob("*.py") if path.is_file()):
        blocks = path.read_text(encoding="utf-8", errors="replace").split("\n\n\n")
        documents += [block.strip("\n") for block in blocks if block.strip()]
    for name, chosen in (("held_out.txt", documents[::50]),
                         ("train.txt", [document for i, document in enumerate(documents) if i % 50])):
        (output / name).write_text("\n\n\n".join(chosen) + "\n", encoding="utf-8")
        print(f"{len(chosen)} blocks in {name}")


if __name__ == "__main__":
    main()
