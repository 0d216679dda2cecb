"""Tests `copus selftest` as a process: its lines, its JSON, its exit codes.

Usage: selftest_test.py PATH_TO_COPUS [unittest options].
"""

import json
import os
import sys
import unittest
import unittest.mock

from program_test_support import ProgramTest


class SelfTest(ProgramTest):
    def test_json(self):
        result = json.loads(self.assert_done("selftest", "--ranks", "4", "--device", "cpu", "--json").stdout)
        self.assertTrue(result["passed"])
        self.assertEqual((result["launcher"], result["connection"], result["seed"]), ("copus", "shared memory", 1))
        self.assertEqual([(row["rank"], row["local_rank"]) for row in result["ranks"]], [(i, i) for i in range(4)])
        self.assertEqual(len({row["host"] for row in result["ranks"]}), 1)
        groups = [(row["kind"], row["members"], row["groups"]) for row in result["groups"]]
        self.assertEqual(groups, [("data, tensor", 2, [[0, 1], [2, 3]]), ("data, pipeline", 2, [[0, 2], [1, 3]]),
                                  ("tie", 2, [[0, 3]]), ("data, pipeline, tensor", 4, [[0, 1, 2, 3]])])
        for row in result["groups"]:
            self.assertEqual((row["memory"], row["passed"], row["wrong_ranks"]), ("host", True, 0))
        for row in result["speeds"]:
            self.assertAlmostEqual(row["algorithm_bytes_per_second"] * row["median_seconds"] / row["bytes"], 1)
            self.assertEqual(len(row["seconds"]), len(row["groups"]))
        if not result["shortened"]:
            self.assertEqual({row["layout"] for row in result["layouts"]},
                             {"d=4,t=1,p=1", "d=2,t=2,p=1", "d=2,t=1,p=2", "d=1,t=4,p=1", "d=1,t=2,p=2", "d=1,t=1,p=4"})
            self.assertEqual(result["relayouts"][0]["from"], result["relayouts"][-1]["to"])
        for row in result["layouts"] + result["relayouts"]:
            self.assertTrue(row["passed"], row)

    def test_lines(self):
        result = self.assert_done("selftest", "--ranks", "2", "--device", "cpu")
        self.assertRegex(result.stdout, r"(?m)^ranks +2 started by copus, connected by shared memory; .*: ranks 0, 1$")
        self.assertRegex(result.stdout, r"(?m)^groups +ok +1 x 2 ranks \(data, pipeline, tensor\): 0, 1, host memory; "
                                        r"results repeat bitwise \(seed 1\)$")
        self.assertRegex(result.stdout, r"(?m)^speed +all-reduce, 1 x 2 ranks .*: 8 B .* us; .*4.0 MiB .* us, .* GB\/s \(bus ")
        self.assertRegex(result.stdout, r"(?m)^re-layout +ok +d=2,t=1,p=1,.* -> ")
        self.assertRegex(result.stdout, r"(?m)^layout +ok +d=1,t=2,p=1: losses as of one rank, to [0-9.e-]+$")
        self.assertRegex(result.stdout, r"(?m)^selftest +ok +after ")

    def test_one_rank(self):
        result = json.loads(self.assert_done("selftest", "--ranks", "1", "--device", "cpu", "--json").stdout)
        self.assertEqual((result["groups"], result["speeds"], result["relayouts"]), ([], [], []))
        self.assertEqual([row["layout"] for row in result["layouts"]], ["d=1,t=1,p=1", "d=1,t=1,p=1"])

    def test_too_short_a_time_leaves_layouts_out(self):
        result = json.loads(
            self.assert_done("selftest", "--ranks", "2", "--device", "cpu", "--seconds", "0.001", "--json").stdout)
        self.assertTrue(result["passed"] and result["shortened"])
        self.assertEqual(result["layouts"], [])
        self.assertEqual(len(result["groups"]), 1)

    def test_faults_are_healed_and_told_of(self):
        result = json.loads(self.assert_done("selftest", "--faults", "5", "--seed", "4", "--json").stdout)
        self.assertTrue(result["passed"])
        self.assertEqual((result["ranks"], result["seed"], len(result["faults"])), (4, 4, 5))
        self.assertEqual([fault["failure"] for fault in result["faults"]], [""] * 5)
        for run in result["runs"]:
            self.assertEqual((run["failure"], run["steps"]), ("", 300))
        self.assertTrue(any("healed_seconds" in fault for fault in result["faults"]))

    def test_mistakes(self):
        self.assert_refused("selftest", "--faults", "0", says=["--faults"])
        self.assert_refused("selftest", "--faults", "1", "--ranks", "3", says=["--ranks 3", "2, 4 or 8"])
        self.assert_refused("selftest", "--faults", "1", "--device", "cuda", says=["--device cuda", "CPU"])
        self.assert_refused("selftest", "--ranks", "0", says=["--ranks"])
        self.assert_refused("selftest", "--device", "tpu", says=["--device", "tpu"])
        self.assert_refused("selftest", "--seconds", "0", says=["--seconds"])
        with unittest.mock.patch.dict(os.environ, CUDA_VISIBLE_DEVICES="", HIP_VISIBLE_DEVICES=""):
            self.assert_refused("selftest", "--ranks", "2", "--device", "cuda", says=["cuda"])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
