#!/usr/bin/env python3
"""python -m copus.track hands a run's steps to W&B (offline), MLflow and Prometheus' textfile, and follows a log."""

import json
import os
import struct
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

LOSSES = [3.5, None, 2.25, 2.0]


def offline_records(data):
    """The records of a file of W&B: behind seven bytes LevelDB's log format, cut into blocks of 32 KiB."""
    position, record = 7, b""
    while position + 7 <= len(data):
        left = 32768 - position % 32768
        if left < 7:
            position += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, position)
        record += data[position + 7:position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield record
            record = b""


class Track(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.run_dir = self.folder / "first"
        self.run_dir.mkdir()
        (self.run_dir / "config.toml").write_text("[optimizer]\nlr = 0.5\n")
        self.write_log(4)

    def write_log(self, steps, end=""):
        lines = [{"step": i + 1, "loss": loss, "clipped": False, "strategy": "1x1x1"} for i, loss in enumerate(LOSSES)]
        (self.run_dir / "run.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines[:steps]) + end)

    def end_run(self):
        (self.run_dir / "summary.json").write_text('{"steps": 4}')

    def start(self, *arguments, **environment):
        command = [sys.executable, "-m", "copus.track", self.run_dir, *arguments]
        environment = os.environ | {key: str(value) for key, value in environment.items()}
        return subprocess.Popen([str(part) for part in command], env=environment, cwd=self.folder,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def finish(self, process, code=0):
        output, _ = process.communicate(timeout=240)
        self.assertEqual(process.returncode, code, output)
        return output

    def test_wandb(self):
        from wandb.proto import wandb_internal_pb2

        self.end_run()
        self.finish(self.start("--to", "wandb", WANDB_MODE="offline", WANDB_DIR=self.folder, WANDB_SILENT="true"))
        (path,) = self.folder.glob("wandb/offline-run-*/*.wandb")
        found = {}
        for data in offline_records(path.read_bytes()):
            record = wandb_internal_pb2.Record.FromString(data)
            items = {(item.key or item.nested_key[0]): json.loads(item.value_json) for item in record.history.item}
            if "_step" in items:
                found[items["_step"]] = items.get("loss")
        self.assertEqual(found, dict(enumerate(LOSSES, start=1)))

    def test_mlflow(self):
        import mlflow

        self.end_run()
        uri = (self.folder / "mlruns").as_uri()
        options = {"MLFLOW_TRACKING_URI": uri, "MLFLOW_ALLOW_FILE_STORE": "true"}
        self.finish(self.start("--to", "mlflow", **options))
        os.environ |= options
        client = mlflow.MlflowClient(uri)
        (run,) = client.search_runs(["0"])
        self.assertEqual(run.info.run_name, "first")
        self.assertEqual(run.data.params, {"optimizer.lr": "0.5"})
        history = {metric.step: metric.value for metric in client.get_metric_history(run.info.run_id, "loss")}
        self.assertEqual(history, {1: 3.5, 3: 2.25, 4: 2.0})

    def newest(self):
        from prometheus_client.parser import text_string_to_metric_families

        path = self.run_dir / "metrics.prom"
        families = text_string_to_metric_families(path.read_text()) if path.exists() else []
        samples = [sample for family in families for sample in family.samples]
        self.assertTrue(all(sample.labels == {"run": "first"} for sample in samples))
        return {sample.name: sample.value for sample in samples}

    def wait_for_step(self, step):
        deadline = time.monotonic() + 120
        while self.newest().get("copus_step") != step:
            self.assertLess(time.monotonic(), deadline, f"step {step} does not come: {self.newest()}")
            time.sleep(0.1)

    def test_prometheus_follows_a_log_that_is_cut_and_grows(self):
        self.write_log(3, end='{"step": 4, "lo')
        process = self.start("--to", "prometheus")
        self.wait_for_step(3)
        self.write_log(2)
        self.write_log(4)
        self.wait_for_step(4)
        self.assertIsNone(process.poll())
        self.end_run()
        self.finish(process)
        self.assertEqual(self.newest(), {"copus_step": 4, "copus_loss": 2.0, "copus_clipped": 0})

    def test_mistakes(self):
        (self.folder / "wandb.py").write_text("raise ImportError(name='wandb')")
        path = f"{self.folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
        self.assertIn("needs the Python package wandb", self.finish(self.start("--to", "wandb", PYTHONPATH=path), 2))
        (self.run_dir / "run.jsonl").write_text("{\n")
        self.assertIn("run.jsonl: has a damaged line", self.finish(self.start("--to", "prometheus"), 2))
        (self.run_dir / "config.toml").unlink()
        self.assertIn("config.toml: no such file", self.finish(self.start("--to", "prometheus"), 2))


if __name__ == "__main__":
    unittest.main()
