#!/usr/bin/env python3
"""Tests the logic of nccl.py without a GPU: what is kept, what is skipped, what counts as passed."""

import json
import math
import pathlib
import sys
import tempfile
import unittest
import unittest.mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import nccl  # noqa: E402

# Answers like the program; losses depend on the layout's world size unless set otherwise.
PROGRAM = """#!/usr/bin/env python3
import json, pathlib, sys, time
if sys.argv[1] == "selftest":
    time.sleep(float(pathlib.Path(sys.argv[0]).with_name("sleep").read_text()))
    row = {"passed": True}
    costs = {"collective_bytes": 1200e6, "exchange_bytes": 0, "message_bytes": 40e6, "split_seconds": 0.25}
    print(json.dumps({"groups": [row], "connection": "NCCL", "communicators": costs}))
    sys.exit(0)
run = pathlib.Path(sys.argv[sys.argv.index("--run-dir") + 1])
run.mkdir()
off = 1.5 if "parallel.tensor_parallel=2" in sys.argv else 1.0
lines = [json.dumps({"step": step, "loss": off * 5 / (1 + step)}) for step in range(12)]
(run / "run.jsonl").write_text("\\n".join(lines) + "\\n")
print("connects   GPUs by NCCL 2.30.7")
"""


COMM_TEST = """#!/bin/sh
case "$*" in
  *--gtest_list_tests*) printf 'NcclWorld.\\n  Adds\\n  LooksIntoTheMock\\nNcclFailure.\\n  Hangs\\n';;
  *LooksIntoTheMock*) echo '[  SKIPPED ] 1 test, listed below:';;
  *Hangs*) exit 1;;
esac
"""


class NcclBench(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.program = self.folder / "copus"
        self.program.write_text(PROGRAM)
        self.program.chmod(0o755)
        (self.folder / "sleep").write_text("0")
        comm_test = self.folder / "rooms" / "comm" / "comm_test"
        comm_test.parent.mkdir(parents=True)
        comm_test.write_text(COMM_TEST)
        comm_test.chmod(0o755)
        self.out = self.folder / "out.jsonl"

    def run_program(self, *arguments):
        sys.argv = ["nccl.py", "--program", str(self.program), "--out", str(self.out), "--dry-run", *arguments]
        return nccl.main()

    def bench(self):
        return nccl.Bench(nccl.argparse.Namespace(program=self.program, dry_run=True, nccl_source=None), self.folder)

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
        with self.assertRaises(nccl.OutOfTime):  # no result of the case
            nccl.selftest(2, 30)(nccl.Bench(options, self.folder, nccl.time.monotonic() + 0.5))

    def test_a_case_that_the_end_interrupts_comes_again(self):
        (self.folder / "sleep").write_text("60")
        case = nccl.Case("selftest-2", 90, nccl.selftest(2, 90), needs=0)
        with unittest.mock.patch.object(nccl, "cases", lambda: [case]):
            self.run_program("--seconds", "0.5")
            self.assertEqual(self.results(), {})
            (self.folder / "sleep").write_text("0")
            self.run_program()
        self.assertTrue(nccl.has_passed(self.results()["selftest-2"]))

    def test_cases_of_earlier_files_are_skipped(self):
        self.run_program("--only", "^layout-p2$")
        earlier = self.out.rename(self.folder / "earlier.jsonl")
        self.assertEqual(self.run_program("--only", "^layout-p[24]$", "--earlier", str(earlier)), 0)
        self.assertEqual(list(self.results()), ["layout-p4"])

    def test_communicators_cost_what_each_of_the_ranks_took(self):
        kept = nccl.selftest(2, 9)(self.bench())
        self.assertEqual(kept["megabytes_of_a_rank"], {"collective": 600.0, "exchange": 0.0, "message": 20.0})
        self.assertEqual((kept["groups"], kept["failed"]), ("1 of 1", []))
        self.assertIn("selftest-2: 0.250 s a split; a communicator takes collective 600.0 MB",
                      nccl.report([{"case": "selftest-2", "seconds": 1.0, **kept}]))
        of_four = nccl.selftest(4, 9)(self.bench())
        self.assertNotIn("megabytes_of_a_rank", of_four)
        self.assertIn("selftest-4: 0.250 s a split\n",
                      nccl.report([{"case": "selftest-4", "seconds": 1.0, **of_four}]))

    def test_a_test_of_comm_that_fails_is_named(self):
        kept = nccl.comm_tests(self.bench())
        self.assertEqual((kept["tests"], kept["skipped"], kept["code"]), (3, 1, 1))
        self.assertEqual(list(kept["failed"]), ["NcclFailure.Hangs"])
        self.assertEqual(kept["not_run"], [])
        self.assertFalse(kept["passed"])

    def test_tests_of_comm_end_after_hangs_and_keep_what_they_found(self):
        def call(command, limit, environment):
            listing = "NcclWorld.\n" + "".join(f"  Test{number}\n" for number in range(6))
            if "--gtest_list_tests" in command:
                return nccl.Outcome(0, 0.0, listing)
            return nccl.Outcome(0 if command[-1].endswith("Test1") else None, 0.0, "")

        bench = self.bench()
        with unittest.mock.patch.object(bench, "call", call):
            kept = nccl.comm_tests(bench)
            self.assertEqual(list(kept["failed"]), ["NcclWorld.Test0", "NcclWorld.Test2", "NcclWorld.Test3"])
            self.assertEqual(kept["not_run"], ["NcclWorld.Test4", "NcclWorld.Test5"])
            self.assertIsNone(kept["code"])
            self.assertFalse(kept["passed"])
            with unittest.mock.patch.object(nccl, "COMM_TEST_SECONDS", 0):
                kept = nccl.comm_tests(bench)
        self.assertEqual((len(kept["not_run"]), kept["failed"], kept["passed"]), (6, {}, False))

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
