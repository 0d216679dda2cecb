#!/usr/bin/env python3
"""Tests of the summary of scripts/gpu-check, from files as its phases leave them. Needs no GPU."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

REPORT = pathlib.Path(__file__).with_name("gpu_check_report.py")
ROW = {"from": "d=2,t=2,p=2,B=8,b=1", "to": "d=4,t=2,p=1,B=8,b=1", "ranks": 8, "pause_seconds": 0.05, "bytes_moved": 2**30, "bytes_received": 2**29,
       "bound_seconds": 0.025, "copy_bytes_per_second": 21.5e9, "pause_over_limit": 0.87}
SELF_TEST = {"passed": True, "shortened": False, "ranks": [{}] * 8, "groups": [{}] * 5, "layouts": [{}] * 4,
             "relayouts": [{}] * 3}
MEASUREMENTS = {
    "machine": {"name": "NVIDIA H200", "matmul_tflops": 790.0, "copy_bytes_per_second": 4e12, "torch": "2.11",
                "transformers": "5"},
    "seconds": 1.0, "cases": [], "not_measured": [{"name": "qwen2.5-3b x 2048", "reason": "3 s were left"}],
}
TESTS = '''<testsuite><testcase name="model.a" time="1" status="run"/><testcase name="model.b" time="1" status="fail"/>
<testcase name="model.c" time="0" status="notrun"/></testsuite>'''


class Report(unittest.TestCase):
    def report(self, **files: str) -> tuple[str, dict]:
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "phases.tsv").write_text("Build\t100.5\tpassed\nMeasure\t20.0\tstopped after 20 s\n")
            for file, text in files.items():
                (folder / file.replace("_", ".")).write_text(text)
            done = subprocess.run([sys.executable, str(REPORT), name], capture_output=True, text=True, check=True)
            return done.stdout, json.loads((folder / "gpu-check.json").read_text())

    def test_ends_with_what_decides(self):
        output, everything = self.report(tests_xml=TESTS, selftest_json=json.dumps(SELF_TEST),
                                         relayout_json=json.dumps({"rows": [ROW]}),
                                         measure_json=json.dumps(MEASUREMENTS))
        self.assertEqual((everything["selftest"], everything["relayout"]["rows"]), (SELF_TEST, [ROW]))
        self.assertEqual(everything["measurements"], MEASUREMENTS)
        self.assertIn("    failed: model.b\n", output)
        self.assertIn("qwen2.5-3b x 2048                not measured: 3 s were left", output)
        last = output.splitlines()[-7:]
        self.assertEqual(last[0], "tests on the GPU: 1 passed, 1 failed, 1 skipped")
        self.assertEqual(last[1], "self-test of 8 ranks on one GPU: passed (5 groups, 4 layouts, 3 relayouts)")
        self.assertEqual(last[2], "8 ranks on one GPU, d=2,t=2,p=2,B=8,b=1 -> d=4,t=2,p=1,B=8,b=1: pause 50.0 ms; "
                                  "moves 1,024 MiB, 512 between ranks, which takes 25.0 ms at 21.5 GB/s; 0.87 of 1.5 "
                                  "times that + 20 ms")
        self.assertRegex(last[3], r"qwen2\.5-1\.5b +MFU +aim >= 60\.0 % +not measured")

    def test_what_was_stopped_was_not_measured(self):
        output, everything = self.report(relayout_json='{"rows": [{')
        self.assertEqual((everything["relayout"], everything["measurements"]), (None, None))
        last = output.splitlines()[-7:]
        self.assertEqual(last[:3], ["tests on the GPU: not run", "self-test of ranks on one GPU: not run",
                                    "re-layout on one GPU: not measured"])
        self.assertEqual([line.endswith("not measured") for line in last[3:]], [True] * 4)

    def test_a_self_test_that_fails_is_told(self):
        # The self-test's result when groups already fail.
        failed = {"passed": False, "shortened": False, "ranks": [{}] * 8, "groups": [{}] * 5}
        output, _ = self.report(selftest_json=json.dumps(failed))
        self.assertIn("self-test of 8 ranks on one GPU: FAILED (5 groups, 0 layouts, 0 relayouts)\n", output)


if __name__ == "__main__":
    unittest.main()
