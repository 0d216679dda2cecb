#!/usr/bin/env python3
"""Unpacks the files of a wheel that match one of the patterns: unpack_wheel.py WHEEL FOLDER PATTERN..."""

import fnmatch
import sys
import zipfile


def main(wheel: str, folder: str, *patterns: str) -> None:
    with zipfile.ZipFile(wheel) as archive:
        members = [name for name in archive.namelist() if any(fnmatch.fnmatch(name, each) for each in patterns)]
        if not members:
            sys.exit(f"error: {wheel} has no file that matches {' or '.join(patterns)}")
        archive.extractall(folder, members)


if __name__ == "__main__":
    main(*sys.argv[1:])
