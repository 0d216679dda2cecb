"""Tests `copus profile` as a process: what it writes, which commands read it, and its messages about mistakes.

Usage: profile_test.py PATH_TO_COPUS [unittest options].
"""

import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import tomllib
import unittest
import unittest.mock

from program_test_support import run_with_terminal

COPUS = str(pathlib.Path(sys.argv[1]).resolve())
TIMEOUT = 240  # seconds; no command here takes nearly as long
MODEL = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 256, "hidden_size": 32,
    "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "tie_word_embeddings": False, "max_position_embeddings": 64, "hidden_act": "silu", "rms_norm_eps": 1e-6,
}
RUN = """
[model]
config = "config.json"
[data]
train = "corpus.txt"
held_out_fraction = 0.0
[train]
sequence_length = 32
global_batch = 4
micro_batch = 1
max_steps = 1
threads = 1
precision = "fp32"
"""
# A cluster in which every number affects the results.
CLUSTER = """
ranks_per_node = 2
teraflops_per_rank = 0.001
within_node = { latency_microseconds = 5.0, gigabytes_per_second = 1.0 }
between_nodes = { latency_microseconds = 50.0, gigabytes_per_second = 0.1 }
"""
CELLS = ["d=1,t=1,p=1", "d=2,t=1,p=1,zero=1", "d=1,t=1,p=2,schedule=gpipe,b=2"]


class Profile(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory(prefix="copus_profile_test_")
        self.folder = pathlib.Path(self.temporary.name)
        (self.folder / "corpus.txt").write_text("It was a bright cold day in April. " * 200)
        (self.folder / "config.json").write_text(json.dumps(MODEL))
        (self.folder / "run.toml").write_text(RUN)
        (self.folder / "cluster.toml").write_text(CLUSTER)

    def tearDown(self):
        self.temporary.cleanup()

    def copus(self, *arguments, data_bytes=None):
        def limit():
            if data_bytes is not None:
                resource.setrlimit(resource.RLIMIT_DATA, (data_bytes, data_bytes))

        return subprocess.run([COPUS, *arguments], cwd=self.folder, capture_output=True, text=True, timeout=TIMEOUT,
                              preexec_fn=limit, check=False)

    def cells(self, *arguments, cells=tuple(CELLS), **more):
        named = [part for cell in cells for part in ("--cell", cell)]
        return self.copus("profile", "--config", "run.toml", "--cluster", "cluster.toml", "--set",
                          "cluster.clock=virtual", "--steps", "2", "--rounds", "1", *named, *arguments, **more)

    def refuse(self, result, *parts):
        self.assertEqual(result.returncode, 2, result.stdout + result.stderr)
        self.assertEqual(len(result.stderr.strip().splitlines()), 1, result.stderr)
        for part in parts:
            self.assertIn(part, result.stderr)

    def test_cells_are_measured_learned_and_planned_with(self):
        result = self.cells("--output", "profile.json", "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        printed = json.loads(result.stdout)
        self.assertEqual([row["cell"] for row in printed["cells"]],
                         ["d=1,t=1,p=1,B=4,b=1", "d=2,t=1,p=1,B=4,b=1,zero=1", "d=1,t=1,p=2,B=4,b=2,schedule=gpipe"])
        self.assertEqual(printed["failed"], [])
        for row in printed["cells"]:
            self.assertEqual(row["steps"], 2)
            self.assertTrue(row["learned"])
            # The clock charges the seconds that the time model predicts.
            self.assertAlmostEqual(row["predicted_seconds"] / row["measured_seconds"], 1, delta=0.02)
            self.assertGreater(row["peak_bytes"], 0)
            self.assertGreater(row["predicted_bytes"], 0)
        self.assertTrue((self.folder / "profile.json").is_file())
        plan = self.copus("plan", "--model", "config.json", "--cluster", "cluster.toml", "--gpus", "2", "--sequence-length", "32",
                          "--global-batch", "4", "--precision", "fp32", "--profile", "profile.json", "--json")
        self.assertEqual(plan.returncode, 0, plan.stderr)

    def test_learning_from_some_leaves_the_others_to_be_judged(self):
        result = self.cells("--learn-from", "1", "--json", cells=CELLS[:2])
        self.assertEqual([row["learned"] for row in json.loads(result.stdout)["cells"]], [True, False])

    def test_cells_are_chosen(self):
        result = self.cells("--cells", "2", "--ranks", "1", "--json", cells=[])
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(len({row["cell"] for row in json.loads(result.stdout)["cells"]}), 2)

    def test_a_cell_that_fails_is_left_out(self):
        result = self.cells("--json", cells=[CELLS[0], "B=32768,b=32768"], data_bytes=1 << 30)
        self.assertEqual(result.returncode, 0, result.stderr)
        printed = json.loads(result.stdout)
        self.assertEqual([row["cell"] for row in printed["cells"]], ["d=1,t=1,p=1,B=4,b=1"])
        self.assertEqual(printed["failed"], ["d=1,t=1,p=1,B=32768,b=32768"])
        self.assertIn("left out", result.stderr)

    def test_cells_may_contradict_the_sections_of_adaptation(self):
        for policy, cells in [("ddp-norm", ["d=1,t=1,p=1,B=4,b=1", "d=1,t=2,p=1,B=4,b=1"]),
                              ("steps", ["d=1,t=1,p=1,B=8,b=1"])]:
            result = self.cells("--set", "parallel.data_parallel=2", "--set", "adapt.max_tensor_parallel=1", "--set",
                                f"adapt.policy={policy}", "--set", "adapt.schedule='0:4 64:16'", "--json", cells=cells)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual([row["cell"] for row in json.loads(result.stdout)["cells"]], cells)

    def test_the_cores_are_described_as_a_cluster(self):
        code, _, shown = run_with_terminal(
            ["profile", "--machine", "here.toml", "--device", "cpu", "--precision", "float32"], self.folder)
        self.assertEqual(code, 0, shown)
        self.assertIn("0 of 25 rounds of measuring", shown)
        described = tomllib.loads((self.folder / "here.toml").read_text())
        self.assertEqual(described["devices_per_node"], len(os.sched_getaffinity(0)))
        device = described["device"]
        self.assertRegex(device["name"], ", one core, fp32$")
        self.assertGreater(device["matmul_teraflops"], 0)
        self.assertEqual([rows for rows, _ in device["matmul_by_rows"]], [16, 32, 64, 128, 256, 512, 1024, 2048])
        self.assertEqual([length for length, _ in device["attention_backward"]], [32, 64, 128, 256, 512, 1024])
        plan = self.copus("plan", "--model", "config.json", "--cluster", "here.toml", "--gpus", "2", "--sequence-length", "32",
                          "--global-batch", "4", "--precision", "fp32", "--json")
        self.assertEqual(plan.returncode, 0, plan.stderr)

    def test_no_gpu_is_described_where_there_is_none(self):
        with unittest.mock.patch.dict(os.environ, CUDA_VISIBLE_DEVICES="", HIP_VISIBLE_DEVICES=""):
            self.refuse(self.copus("profile", "--machine", "here.toml", "--device", "cuda"), "cuda")
        self.assertFalse((self.folder / "here.toml").exists())

    def test_mistakes_have_one_clear_message(self):
        self.refuse(self.copus("profile"), "--machine", "--config")
        self.refuse(self.copus("profile", "--machine", "a.toml", "--config", "run.toml"), "--machine", "--config")
        self.refuse(self.cells(cells=["d=2,t=1,q=4"]), "--cell", '"q=4"')
        self.refuse(self.cells(cells=["d=3"]), "--cell d=3", "nearest")
        self.refuse(self.cells(cells=["p=4,schedule=gpipe"]), "--cell p=4,schedule=gpipe")
        self.refuse(self.cells("--learn-from", "9"), "--learn-from 9")
        self.refuse(self.cells("--set", "train.precison=fp32"), "precision")
        self.refuse(self.copus("profile", "--config", "run.toml", "--cluster", "no-such-one"), "no-such-one")
        self.refuse(self.copus("profile", "--config", "none.toml", "--cluster", "cluster.toml"), "none.toml")
        self.refuse(self.copus("profile", "--config", "run.toml"), "--cluster is missing", "--machine")
        self.refuse(self.cells("--output", "nowhere/profile.json"), "--output", "no folder nowhere")
        # A file that cannot be written is refused before anything is measured.
        self.refuse(self.copus("profile", "--machine", "/proc/here.toml"), "/proc/here.toml")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
