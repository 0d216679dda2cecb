"""Tests `copus calibrate` as a process: its files, resuming after a stop, and mistakes.

Usage: calibrate_test.py PATH_TO_COPUS [unittest options].
"""

import json
import signal
import time
import tomllib
import unittest

from program_test_support import TIMEOUT, WITH_TORCH, ProgramTest

NEEDED = 16  # branches needed for an interval


@unittest.skipUnless(WITH_TORCH, "needs libtorch")
class Calibrate(ProgramTest):
    def train(self, *settings):
        options = [option for setting in settings for option in ("--set", setting)]
        self.assert_done("train", "run.toml", "--run-dir", "r", "--set", "train.global_batch=2",
                         "--set", "train.micro_batch=2", "--set", "train.max_steps=100", *options)

    def rows(self):
        files = list((self.folder / "r" / "calibration").glob("*/branches-*.jsonl"))
        return [json.loads(line) for path in files for line in path.read_text().splitlines()]

    def test_finds_critical_batches_that_a_run_reads(self):
        self.train()
        printed = json.loads(self.assert_done("calibrate", "r", "--time", "60s", "--json").stdout)
        written = json.loads((self.folder / "r" / "calibration.json").read_text())
        self.assertEqual(printed, written)
        self.assertLessEqual(written["calibration_low"], written["calibration"])
        self.assertLessEqual(written["calibration"], written["calibration_high"])
        self.assertEqual(written["consumed_samples"], 200)
        self.assertEqual(written["reference_batch"], 2)
        self.assertGreaterEqual(len(self.rows()), NEEDED)
        self.assertEqual(written["branches"], len(self.rows()))

        self.assert_done("train", "run.toml", "--run-dir", "s", "--set", "noise_scale.calibration=r/calibration.json",
                         "--set", "train.max_steps=2")
        config = tomllib.loads((self.folder / "s" / "config.toml").read_text())
        [point] = written["critical_batches"]
        self.assertEqual(config["noise_scale"]["calibration"],
                         [[point[name] for name in ("tokens", "noise_scale_tokens", "critical_batch_tokens", "deviation")]])
        self.assertAlmostEqual(point["critical_batch_tokens"] / point["noise_scale_tokens"], written["calibration"])

        # A later checkpoint adds its own.
        self.assert_done("train", "--resume", "--run-dir", "r", "--set", "train.max_steps=200")
        self.assert_done("calibrate", "r", "--time", "60s")
        later = json.loads((self.folder / "r" / "calibration.json").read_text())
        self.assertEqual(later["critical_batches"][0], point)
        self.assertEqual([entry["tokens"] for entry in later["critical_batches"]], [point["tokens"], 2 * point["tokens"]])

    def test_goes_on_where_it_was_stopped(self):
        self.train()
        process = self.start("calibrate", "r", "--time", "60s")
        deadline = time.monotonic() + TIMEOUT
        while len(self.rows()) < 3 and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=TIMEOUT)
        self.assertEqual(process.returncode, 130, errors)
        self.assertIn("goes on", errors)
        stopped = self.rows()
        self.assertFalse((self.folder / "r" / "calibration.json").exists())
        self.assert_done("calibrate", "r", "--time", "60s")
        self.assertEqual(self.rows()[:len(stopped)], stopped)
        keys = [(row["batch"], row["rate_exponent"], row["samples"], row["repetition"]) for row in self.rows()]
        self.assertEqual(len(set(keys)), len(keys))
        self.assertGreaterEqual(len(keys), NEEDED)

    def test_mistakes(self):
        self.assert_refused("calibrate", "r", says=["there is no run in r (no such folder)"])
        (self.folder / "empty").mkdir()
        self.write("empty/config.toml", "")
        self.assert_refused("calibrate", "empty", says=["no checkpoint yet"])
        self.train("data.held_out_fraction=0.0")
        self.assert_refused("calibrate", "r", says=["held-out", "data.held_out_fraction"],
                            leaves_run_dir=True)
        self.write("other.json", "{}")
        self.assert_refused("train", "run.toml", "--set", "noise_scale.calibration=other.json",
                            says=["noise_scale.calibration", "other.json", "copus calibrate"], leaves_run_dir=True)
        self.assert_refused("train", "run.toml", "--set", "noise_scale.calibration=missing.json",
                            says=["noise_scale.calibration", "missing.json"], leaves_run_dir=True)

    def test_too_little_time_is_said_beforehand(self):
        self.train()
        self.assert_refused("calibrate", "r", "--time", "0.01s", says=["--time", "would take about", "give more"],
                            leaves_run_dir=True)
        self.assertFalse((self.folder / "r" / "calibration").exists())


if __name__ == "__main__":
    import sys
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
