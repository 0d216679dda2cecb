"""Tests `copus simulate` as a process: its tables and JSON, and its messages about mistakes.

Usage: simulate_test.py PATH_TO_COPUS [unittest options].
"""

import json
import sys
import unittest

from program_test_support import MODELLED_CLOCK, ProgramTest

JOB = """
[parallel]
data_parallel = 8
tensor_parallel = 8
""" + MODELLED_CLOCK + """
[adapt]
objective = "time"
global_batches = [16, 32, 64, 128]
micro_batches = [1, 2]
interval_samples = 512
"""
SHORT = ["--tokens", "5e8", "--targets", "5", "4"]


class SimulateTest(ProgramTest):
    def setUp(self):
        super().setUp()
        self.write_run("job.toml", more=JOB)
        text = (self.folder / "job.toml").read_text().replace("micro_batch = 4", "micro_batch = 1")
        self.write("job.toml", text.replace("global_batch = 8", "global_batch = 16"))

    def simulated(self, *arguments):
        result = self.assert_done("simulate", "job.toml", *SHORT, *arguments)
        self.assertEqual(result.stderr, "")
        return result.stdout

    def refused(self, *arguments, says):
        self.assertEqual(self.assert_refused("simulate", *arguments, says=says).stdout, "")

    def test_tables(self):
        text = self.simulated("--policy", "copus", "static")
        for words in ["8.0 B parameters on 64 ranks, sequences of 8192; to the loss of 500 M tokens; losses are nats per "
                      "token.",
                      "losses are those of a published law: nothing here was measured",
                      "critical batch by kaplan, 2 times the noise scale (--calibration)", "alpha 0;", "as planned",
                      "layouts are off by 10 %", "In hindsight:", "copus: ", "static: "]:
            self.assertIn(words, text)
        self.assertIn("re-layouts pause for 45.0 s", self.simulated("--policy", "static", "--pause", "45s"))

    def test_json(self):
        simulated = json.loads(self.simulated("--json", "--policy", "copus", "copus-paper", "static"))
        self.assertEqual(simulated["law"], "kaplan")
        self.assertEqual(simulated["tokens"], 5e8)
        self.assertIn("nothing here was measured", simulated["note"])
        targets = simulated["targets"]
        self.assertEqual([target["loss"] for target in targets[:2]], [5, 4])
        self.assertAlmostEqual(targets[-1]["tokens"], 5e8, delta=1)
        self.assertEqual([run["policy"] for run in simulated["policies"]], ["copus", "copus-paper", "static"])
        for run in simulated["policies"]:
            self.assertGreater(run["steps"], 100)
            for reached, target in zip(run["targets"], targets, strict=True):
                self.assertEqual(reached["loss"], target["loss"])
                self.assertGreaterEqual(reached["tokens"], target["tokens"])
                self.assertGreaterEqual(reached["over_clairvoyant"], 1 - 1e-9)
                static, best = target["best_static"]["seconds"], target["clairvoyant_seconds"]
                self.assertAlmostEqual(reached["over_best_static"], reached["seconds"] / static)
                self.assertAlmostEqual(reached["over_clairvoyant"], reached["seconds"] / best)
        stayed = simulated["policies"][2]
        self.assertEqual((stayed["relayouts"], stayed["batch_changes"]), (0, 0))
        self.assertGreater(simulated["policies"][0]["relayouts"], 0)

    def test_repeats_itself(self):
        arguments = ["--json", "--policy", "copus", "--set", "train.seed=3"]
        self.assertEqual(self.simulated(*arguments), self.simulated(*arguments))
        self.assertNotEqual(self.simulated(*arguments), self.simulated(*arguments[:-1], "train.seed=4"))

    def test_what_is_taken_for_true(self):
        def end(*arguments):
            simulated = json.loads(self.simulated("--json", "--policy", "static", *arguments))
            return simulated["targets"][-1]["critical_batch"], simulated["policies"][0]["targets"][-1]["seconds"]

        by_kaplan, seconds = end()
        self.assertNotEqual(end("--law", "olmo")[0], by_kaplan)
        self.assertLess(end("--worth", "root")[1], seconds)
        self.assertEqual(end("--calibration", "8"), (by_kaplan, seconds), "a static run does not look at it")
        self.assertEqual(end("--truth-alpha", "0.5"), (by_kaplan, seconds), "it stays in the batch of its rate")
        self.assertNotEqual(end("--set", "cluster.truth_seed=7")[1], seconds)

    def test_mistakes(self):
        self.refused("nowhere.toml", says=["nowhere.toml"])
        self.refused("job.toml", *SHORT, "--policy", "greedy", says=["--policy", "greedy"])
        self.refused("job.toml", *SHORT, "--policy", "none", says=["--policy none", '"static"'])
        self.refused("job.toml", *SHORT, "--policy", "script", "--set", "adapt.file=x", says=["--policy script"])
        self.refused("job.toml", "--tokens", "5e8", "--targets", "2", says=["a target loss of 2", "500 M tokens"])
        self.refused("job.toml", "--tokens", "many", says=["--tokens"])
        self.refused("job.toml", "--tokens", "10", says=["--tokens 10", "at least 1e+06"])
        self.refused("job.toml", "--law", "moore", says=["moore", "kaplan"])
        self.refused("job.toml", "--worth", "measured", says=["measured", "hyperbola"])
        self.refused("job.toml", "--calibration", "0", says=["--calibration"])
        self.refused("job.toml", "--truth-alpha", "-1", says=["--truth-alpha"])
        for option in ("--truth-alpha", "--calibration", "--tokens"):
            for value in ("nan", "inf"):
                self.refused("job.toml", option, value, says=[option, value])
        self.refused("job.toml", "--tokens", "1e15", says=["steps", "--tokens"])
        self.refused("job.toml", *SHORT, "--policy", "copus", "static", "copus",
                     says=["--policy copus", "more than once"])
        self.refused("job.toml", *SHORT, "--set", "adapt.advise=true", says=["adapt.advise"])
        self.refused("job.toml", *SHORT, "--policy", "late-switch", "--set", "adapt.late_switch_batch=64",
                     says=["late-switch", "share of the run"])
        self.refused("job.toml", "--pause", "soon", says=["--pause soon"])
        self.refused("job.toml", "--set", "adapt.bogus=1", says=["adapt.bogus"])
        self.refused("run.toml", "--set", "cluster.config=h100-sxm", "--set", "cluster.clock=virtual",
                     says=["cluster.clock", "stands for"])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
