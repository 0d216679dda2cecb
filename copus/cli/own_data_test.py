"""Runs the section of the guide that leads from JSONL to a model in Hugging Face's format, block by block, with a
shorter training. What it says about lm_eval is tested by python/tests/integrations/lm_eval_test.py.

Usage: own_data_test.py PATH_TO_COPUS [unittest options]. Ends with 77, which CTest takes for skipped, where the clone's
Python has no package tokenizers.
"""

import json
import pathlib
import subprocess
import sys
import unittest

from guide_section import make_clone, run_block, shell_blocks
from program_test_support import COPUS, ROOT, ProgramTest

PYTHON = ROOT / ".venv" / "bin" / "python"


class OwnData(ProgramTest):
    def test_every_command_works_in_its_order(self):
        make_clone(self.folder, pathlib.Path(COPUS), ROOT / ".venv")
        blocks = [block for block in shell_blocks("From your own articles to a score") if "lm_eval" not in block]
        self.assertEqual(len(blocks), 4)
        shortened = blocks[2].replace('max_seconds = "40s"', "max_steps = 30")
        self.assertNotEqual(shortened, blocks[2])
        blocks[2] = shortened
        printed = [run_block(block, self.folder) for block in blocks]
        loss = json.loads((self.folder / "runs/articles/summary.json").read_text())["held_out_loss"]
        self.assertLess(loss, 6.5, "of 1024 tokens alike it would be 6.9")
        self.assertIn("The batch ", printed[3])
        self.assertIn("Copied from data/articles.tokenizer: tokenizer.json, tokenizer_config.json.", printed[3])
        self.assertTrue((self.folder / "articles-hf/model.safetensors").exists())


if __name__ == "__main__":
    has_package = PYTHON.exists() and not subprocess.run([PYTHON, "-c", "import tokenizers"],
                                                         stderr=subprocess.DEVNULL).returncode
    if not has_package:
        print("skipped: .venv has no Python package tokenizers")
        sys.exit(77)
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
