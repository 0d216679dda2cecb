#!/usr/bin/env python3
"""The logic of nccl.py without a GPU: what is kept, what is skipped, what counts as passed."""

import json
import math
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import nccl  # noqa: E402

# Answers like the program: the losses are those of the layout's world size, unless told otherwise.
PROGRAM = """#!/usr/bin/env python3
import json, pathlib, sys, time
if sys.argv[1] == "selftest":
    time.sleep(float(pathlib.Path(sys.argv[0]).with_name("sleep").read_text()))
    print("All passed.")
    sys.exit(0)
run = pathlib.Path(sys.argv[sys.argv.index("--run-dir") + 1])
run.mkdir()
off = 1.5 if "parallel.tensor_parallel=2" in sys.argv else 1.0
lines = [json.dumps({"step": step, "loss": off * 5 / (1 + step)}) for step in range(12)]
(run / "run.jsonl").write_text("\\n".join(lines) + "\\n")
print("connects   GPUs by NCCL 2.30.7")
"""


class NcclBench(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.program = self.folder / "copus"
        self.program.write_text(PROGRAM)
        self.program.chmod(0o755)
        (self.folder / "sleep").write_text("0")
        self.out = self.folder / "out.jsonl"

    def run_program(self, *arguments):
        sys.argv = ["nccl.py", "--program", str(self.program), "--out", str(self.out), "--dry-run", *arguments]
        return nccl.main()

    def results(self):
        return {result["case"]: result for result in nccl.read_results(self.out)}

    def test_compares_losses_with_those_of_a_cpu(self):
        self.assertEqual(self.run_program("--only", "^layout-(p2|t2)$"), 1)
        results = self.results()
        self.assertTrue(results["layout-p2"]["passed"])
        self.assertEqual(results["layout-p2"]["difference_from_cpu"], 0)
        self.assertEqual(results["layout-p2"]["connects"], "GPUs by NCCL 2.30.7")
        self.assertFalse(results["layout-t2"]["passed"])
        self.assertAlmostEqual(results["layout-t2"]["difference_from_cpu"], 1 / 3)

    def test_goes_on_where_the_call_before_ended(self):
        self.run_program("--only", "^layout-p2$")
        self.run_program("--only", "^layout-p[24]$")
        self.assertEqual([result["case"] for result in nccl.read_results(self.out)], ["layout-p2", "layout-p4"])
        self.run_program("--seconds", "0")  # no time for anything
        self.assertEqual(len(self.results()), 2)

    def test_a_hang_is_an_outcome(self):
        (self.folder / "sleep").write_text("60")
        options = nccl.argparse.Namespace(program=self.program, dry_run=True, nccl_source=None)
        kept = nccl.selftest(2, 1)(nccl.Bench(options, self.folder))
        self.assertIsNone(kept["code"])
        self.assertFalse(nccl.has_passed(kept))

    def test_a_run_without_losses_differs_from_any(self):
        self.assertEqual(nccl.largest_difference([], [1.0]), math.inf)
        self.assertEqual(nccl.largest_difference([1.0], [1.0, 2.0]), math.inf)
        self.assertEqual(nccl.largest_difference([2.0], [1.0]), 0.5)

    def test_bits_are_compared_across_calls(self):
        lines = [{"case": f"bits-{first}", "seconds": 1, "code": 0, "runs": 5, "passed": True, "losses": [loss]}
                 for first, loss in ((0, 1.0), (5, 1.0))]
        self.assertIn("10 runs of one layout: bitwise alike", nccl.report(lines))
        lines[1]["losses"] = [1.0000001]
        self.assertIn("they DIFFER", nccl.report(lines))

    def test_a_case_that_throws_is_kept_as_failed(self):
        self.program.write_text("#!/bin/sh\nexit 3\n")
        self.assertEqual(self.run_program("--only", "^layout-p2$"), 1)
        self.assertIn("the reference on a CPU failed", self.results()["layout-p2"]["says"])
        json.dumps(self.results())


if __name__ == "__main__":
    unittest.main()
