#!/usr/bin/env python3
"""python -m copus.track hands a run's steps to W&B (offline), MLflow and Prometheus' textfile, and follows a log."""

import fcntl
import json
import os
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

LOSSES = [3.5, None, 2.25, 2.0]
PROGRAM = str(Path(__file__).parents[3] / "build/copus")
RUN = """
[model]
architecture = "llama"
vocab_size = 256
hidden_size = 32
intermediate_size = 64
num_hidden_layers = 2
num_attention_heads = 4
[data]
train = "text.txt"
[train]
sequence_length = 32
global_batch = 4
micro_batch = 4
max_steps = 1000000
threads = 1
"""


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
        lines = [{"step": i + 1, "loss": loss, "clipped": False, "strategy": "d=1,t=1,p=1"} for i, loss in enumerate(LOSSES)]
        (self.run_dir / "run.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines[:steps]) + end)

    def end_run(self, steps=4, ended="done"):
        (self.run_dir / "summary.json").write_text(json.dumps({"steps": steps, "ended": ended}))

    def start(self, *arguments, patience=60, **environment):
        program = f"import copus.track as track; track.PATIENCE_SECONDS = {patience}; raise SystemExit(track.main())"
        command = [sys.executable, "-c", program, self.run_dir, *arguments]
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
        self.assertEqual(run.info.status, "FINISHED")
        self.assertEqual(run.data.params, {"optimizer.lr": "0.5"})
        history = {metric.step: metric.value for metric in client.get_metric_history(run.info.run_id, "loss")}
        self.assertEqual(history, {1: 3.5, 3: 2.25, 4: 2.0})

    def newest(self, run="first"):
        from prometheus_client.parser import text_string_to_metric_families

        path = self.run_dir / "metrics.prom"
        families = text_string_to_metric_families(path.read_text()) if path.exists() else []
        samples = [sample for family in families for sample in family.samples]
        self.assertTrue(all(sample.labels == {"run": run} for sample in samples))
        return {sample.name: sample.value for sample in samples}

    def wait_until(self, condition, what):
        deadline = time.monotonic() + 120
        while not condition():
            self.assertLess(time.monotonic(), deadline, f"it does not come to pass: {what}")
            time.sleep(0.1)

    def wait_for_step(self, step):
        self.wait_until(lambda: self.newest().get("copus_step") == step, f"step {step} is tracked")

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

    def lock_log(self):
        """As the process that trains does."""
        file = (self.run_dir / "run.jsonl").open("rb")
        self.addCleanup(file.close)
        fcntl.flock(file, fcntl.LOCK_EX)
        return file

    def test_a_log_that_has_grown_beyond_where_it_was_cut(self):
        self.write_log(3)
        process = self.start("--to", "prometheus")
        self.wait_for_step(3)
        log = self.run_dir / "run.jsonl"
        longer = log.read_text().replace('"step"', '"elapsed_seconds": 12345.678, "step"', 1)
        log.write_text(longer + '{"step": 4, "loss": 2.0}\n')
        self.wait_for_step(4)
        self.end_run()
        self.finish(process)

    def test_a_run_that_was_stopped_and_resumed(self):
        """With fewer steps than it had before: their number does not tell whether all are tracked."""
        self.write_log(3)
        self.end_run(3, "time limit")
        process = self.start("--to", "prometheus")
        self.wait_for_step(3)
        lock = self.lock_log()
        self.write_log(2)
        self.end_run(2)
        time.sleep(3)
        self.assertIsNone(process.poll(), "its process may write more")
        lock.close()
        self.finish(process)

    def test_a_killed_run_counts_as_failed(self):
        import mlflow

        uri = (self.folder / "mlruns").as_uri()
        options = {"MLFLOW_TRACKING_URI": uri, "MLFLOW_ALLOW_FILE_STORE": "true"}
        lock = self.lock_log()
        process = self.start("--to", "mlflow", patience=2, **options)
        time.sleep(10)
        self.assertIsNone(process.poll(), "a step may take long")
        lock.close()
        self.assertIn("first: no process has been training it for 2 s, and it is not done; tracked until step 4",
                      self.finish(process))
        os.environ |= options
        (run,) = mlflow.MlflowClient(uri).search_runs(["0"])
        self.assertEqual(run.info.status, "FAILED")

    def test_a_run_of_the_program_that_is_killed(self):
        """Its locks are those that are looked for."""
        (self.folder / "text.txt").write_text("the sea and the sky and the stars are far away from here\n" * 400)
        (self.folder / "run.toml").write_text(RUN)
        command = [PROGRAM, "train", "run.toml", "--run-dir", "second"]
        self.run_dir = self.folder / "second"
        with subprocess.Popen(command, cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT) as run:
            self.addCleanup(run.kill)
            self.wait_until(lambda: (self.run_dir / "checkpoints/.lock").exists() and
                            (self.run_dir / "run.jsonl").exists(), "the run begins")
            process = self.start("--to", "prometheus", patience=2)
            self.wait_until(lambda: self.newest("second").get("copus_step", 0) > 10, "ten steps are tracked")
            run.send_signal(signal.SIGSTOP)
            time.sleep(6)
            self.assertIsNone(process.poll(), "the run still has its process")
            run.kill()
        self.assertIn("second: no process has been training it", self.finish(process))

    def test_mistakes(self):
        (self.folder / "wandb.py").write_text("raise ImportError(name='wandb')")
        path = f"{self.folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
        self.assertIn("needs the Python package wandb", self.finish(self.start("--to", "wandb", PYTHONPATH=path), 2))
        (self.run_dir / "run.jsonl").write_text("{\n")
        self.assertIn("run.jsonl: has a damaged line", self.finish(self.start("--to", "prometheus"), 2))
        (self.folder / "wandb.py").write_text("import pathlib\n\n\nclass Run:\n    def finish(self, exit_code):\n"
                                              "        pathlib.Path(__file__).with_name('code').write_text(str(exit_code))\n"
                                              "\n\ndef init(**options):\n    return Run()\n")
        self.finish(self.start("--to", "wandb", PYTHONPATH=path), 2)
        self.assertEqual((self.folder / "code").read_text(), "1", "the run of W&B has failed")
        (self.run_dir / "config.toml").write_text("=")
        self.assertIn("config.toml: is not valid TOML", self.finish(self.start("--to", "prometheus"), 2))
        (self.run_dir / "config.toml").unlink()
        self.assertIn("config.toml: no such file", self.finish(self.start("--to", "prometheus"), 2))


if __name__ == "__main__":
    unittest.main()
