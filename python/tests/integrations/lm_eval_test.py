#!/usr/bin/env python3
"""The guide's way from JSONL to a score, as it stands there: lm_eval finds the loss that Copus found, by the byte."""

import json
import math
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SECTION = "## From your own JSONL to a score\n"
SET_UP = re.compile(r"^(make setup|\.venv/bin/pip install)\b.*\n", re.MULTILINE)  # what is here already
BYTES_PER_TOKEN = 2  # of vocabularies below 65,500


def commands() -> str:
    section = (ROOT / "docs/guide.md").read_text(encoding="utf-8").split(f"\n{SECTION}")[1].split("\n## ")[0]
    return SET_UP.sub("", "".join(re.findall(r"^```sh\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)))


def make_clone(folder: Path) -> None:
    """Makes a folder look like a clone in which the program is built, with this Python as its own."""
    for name in ("build", "docs", "tools"):
        (folder / name).symlink_to(ROOT / name)
    (folder / ".venv").symlink_to(sys.prefix)


class LmEval(unittest.TestCase):
    def test_the_score_of_an_export_is_the_loss_of_the_run(self):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            make_clone(folder)
            done = subprocess.run(["bash", "-euo", "pipefail", "-c", commands()], cwd=folder, stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
            self.assertEqual(done.returncode, 0, done.stdout)
            (scores,) = folder.glob("scores/**/results_*.json")
            score = json.loads(scores.read_text())["results"]["held_out"]["bits_per_byte,none"]
            loss = json.loads((folder / "runs/pages/summary.json").read_text())["held_out_loss"]
            tokens = (folder / "data/held-out.bin").stat().st_size / BYTES_PER_TOKEN
            texts = [json.loads(line)["text"] for line in (folder / "held-out.jsonl").read_text().splitlines()]
        size = sum(len(text.encode()) for text in texts)
        # They cut the texts in other places, and only one of them counts how well ends of texts are guessed.
        self.assertAlmostEqual(score / (loss * tokens / size / math.log(2)), 1, delta=0.03)
        self.assertLess(score, 4, "of bytes alike it would be 8")


if __name__ == "__main__":
    os.environ["HF_DATASETS_OFFLINE"] = "1"
    unittest.main()
