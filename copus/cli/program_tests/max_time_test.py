"""Tests that --max-time covers whole jobs: from the start of the launcher to the end of the last process.

Usage: max_time_test.py PATH_TO_COPUS [unittest options].
"""

import sys
import time
import unittest

from program_test_support import ProgramTest

SECONDS = 40  # jobs here start, write a checkpoint and end in a tenth of it, or half of it on slow machines
TRAIN = ["train", "run.toml", "--run-dir", "r", "--set", "train.max_steps=1000000000", "--max-time", f"{SECONDS}s"]


class MaxTime(ProgramTest):
    def assert_ends_in_time(self, ranks):
        began = time.monotonic()
        job = self.copus(*TRAIN, "--set", f"parallel.data_parallel={ranks}")
        seconds = time.monotonic() - began
        self.assertEqual(job.returncode, 75, job.stdout + job.stderr)
        self.assertIn("Stopped by the time limit after step ", job.stdout)
        self.assertLessEqual(seconds, SECONDS)
        self.assertTrue((self.folder / "r" / "checkpoints" / f"step-{len(self.losses('r')):08}" / "manifest.json").exists())

    def test_of_one_process(self):
        self.assert_ends_in_time(ranks=1)

    def test_of_ranks_that_it_starts(self):
        self.assert_ends_in_time(ranks=2)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
