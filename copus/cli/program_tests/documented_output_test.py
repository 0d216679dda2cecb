"""Compares the program's output in README.md and docs/*.md with its real output.

Usage: documented_output_test.py PATH_TO_COPUS [unittest options].
A `text` block right after an `sh` block shows the output of that block's last command, which must be the same in every
run. Numbers may differ by one in their last digit (documented_commands.is_alike).
"""

import re
import shlex
import subprocess
import sys
import unittest

from program_test_support import COPUS, ROOT, ProgramTest

sys.path.insert(0, str(ROOT / "scripts"))
from documented_commands import is_alike, outputs_of, page_text, pages  # noqa: E402

DETERMINISTIC = re.compile(r"build/copus (plan|simulate|models|clusters) ")


class Output(ProgramTest):
    def test_samples_are_what_the_program_prints(self):
        samples = [sample for page in pages() for sample in outputs_of(page, page_text(page))]
        self.assertGreaterEqual(len(samples), 2)
        for command, lines in samples:
            with self.subTest(f"{command.place}: {command.text}"):
                self.assertRegex(command.text, DETERMINISTIC, "what it prints changes: let a sentence stand before the sample")
                printed = self.assert_done(*shlex.split(command.text)[1:]).stdout.rstrip("\n")
                self.assertTrue(is_alike("\n".join(lines), printed), f"the program prints now:\n{printed}")

    def test_the_plans_of_the_paper_are_up_to_date(self):
        result = subprocess.run([sys.executable, ROOT / "scripts/plan_images", "--check", COPUS], text=True, capture_output=True)
        self.assertEqual(result.returncode, 0, result.stderr)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
