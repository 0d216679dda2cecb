"""The example in plain PyTorch runs, is advised, takes the advice and leaves a run that has it."""

import contextlib
import io
import pathlib
import runpy
import tempfile
import unittest
from unittest import mock

from copus.integrations.schedules import BatchSchedule

EXAMPLE = pathlib.Path(__file__).resolve().parents[1] / "examples" / "plain_pytorch.py"


class Example(unittest.TestCase):
    def test_takes_a_smaller_batch(self):
        with tempfile.TemporaryDirectory() as folder:
            arguments = [str(EXAMPLE), "--steps", "60", "--directory", f"{folder}/run"]
            with mock.patch("sys.argv", arguments), contextlib.redirect_stdout(io.StringIO()) as printed:
                runpy.run_path(str(EXAMPLE), run_name="__main__")
            trained = BatchSchedule.trained(f"{folder}/run")
            advised = BatchSchedule.advised(f"{folder}/run")
        self.assertIn("take batch", printed.getvalue())
        self.assertEqual(trained.pieces[0], (0, 64))
        self.assertLess(trained.pieces[1][1], 64)
        self.assertEqual(trained.pieces[:2], advised.pieces[:2])
        self.assertEqual(BatchSchedule.parse(trained.megatron(), 64), trained)


if __name__ == "__main__":
    unittest.main()
