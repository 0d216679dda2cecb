#!/usr/bin/env python3
"""The guide's way from JSONL to a score, as it stands there: lm_eval finds the loss that Copus found, in bits per byte."""

import json
import math
import os
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "copus/cli/testing"))
from guide_section import make_clone, run_block, shell_blocks  # noqa: E402

BYTES_PER_TOKEN = 2  # of vocabularies below 65,500


class LmEval(unittest.TestCase):
    def test_the_score_of_an_export_is_the_loss_of_the_run(self):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            make_clone(folder, ROOT / "build/copus", Path(sys.prefix))
            for block in shell_blocks("From your own articles to a score"):
                run_block(block, folder)
            (scores,) = folder.glob("scores/**/results_*.json")
            score = json.loads(scores.read_text())["results"]["held_out"]["bits_per_byte,none"]
            loss = json.loads((folder / "runs/articles/summary.json").read_text())["held_out_loss"]
            tokens = (folder / "data/held-out.bin").stat().st_size / BYTES_PER_TOKEN
            texts = [json.loads(line)["text"] for line in (folder / "held-out.jsonl").read_text().splitlines()]
        size = sum(len(text.encode()) for text in texts)
        # They cut the texts in other places, and only one of them counts how well ends of texts are guessed.
        self.assertAlmostEqual(score / (loss * tokens / size / math.log(2)), 1, delta=0.03)
        self.assertLess(score, 4, "of bytes alike it would be 8")


if __name__ == "__main__":
    os.environ["HF_DATASETS_OFFLINE"] = "1"
    unittest.main()
