"""Tests commands with closed standard descriptors, as daemons and `CMD <&- >&- 2>&-` leave them. Their files must be
the same, byte for byte, as with the null device in place of the closed descriptors.

Usage: closed_descriptors_test.py PATH_TO_COPUS [unittest options], of a build with libtorch. With
COPUS_EVERY_DESCRIPTOR=1 every command runs with every combination of closed descriptors on 1, 2 and 4 ranks; otherwise
with some of them. The Python package is in COPUS_PYTHON_MODULE, or else in the build of PATH_TO_COPUS.
"""

import importlib.util
import itertools
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

from free_port import free_port
from program_test_support import COPUS, TIMEOUT, TORCHRUN, ProgramTest

EVERY = os.environ.get("COPUS_EVERY_DESCRIPTOR") == "1"
COMBINATIONS = [closed for count in range(4) for closed in itertools.combinations(range(3), count)]
SOME = COMBINATIONS if EVERY else [(1,), (1, 2), (0, 1, 2)]
ONE = COMBINATIONS if EVERY else [(0, 1, 2)]
RANKS = (1, 2, 4) if EVERY else (2,)
LAYOUT = {1: [], 2: ["parallel.data_parallel=2"], 4: ["parallel.data_parallel=2", "parallel.tensor_parallel=2"]}

# A rank of a PyTorch loop with an adviser. It writes to standard output as libraries do.
RANK = """
import sys
package, folder, rank, ranks = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
sys.path.insert(0, package)
import copus, os, torch
assert os.open("/", os.O_RDONLY) > 2
torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
torch.manual_seed(1)
model = torch.nn.Linear(8, 8)
data = torch.Generator().manual_seed(2 + rank)
adviser = copus.Adviser(batch=8 * ranks, sequence_length=4, directory=f"{folder}/logs")
for step in range(20):
    os.write(1, b"a line of progress" * 100)
    for micro_batch in range(2):
        (model(torch.randn(4, 8, generator=data)).square().mean() / 2).backward()
        if micro_batch == 0:
            adviser.first_micro_batch(model.parameters(), samples=4)
    for parameter in model.parameters():
        torch.distributed.all_reduce(parameter.grad)
        parameter.grad /= ranks
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    adviser.step(norm, samples=8 * ranks, seconds=0.1, lr=0.1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.1 * parameter.grad
            parameter.grad = None
adviser.close()
if rank == 0:
    torch.save(model.state_dict(), f"{folder}/weights")
torch.distributed.destroy_process_group()
"""


class ClosedDescriptors(ProgramTest):
    def setUp(self):
        super().setUp()
        self.write_run("run.toml", steps=12, checkpoint_interval=5)

    def run_closed(self, closed, *command):
        def close():
            for descriptor in closed:
                os.close(descriptor)

        result = subprocess.run(command, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                stderr=subprocess.DEVNULL, preexec_fn=close, timeout=TIMEOUT)
        self.assertEqual(result.returncode, 0, (closed, command))

    def train(self, closed, run, ranks, *more, launcher=()):
        settings = [part for setting in LAYOUT[ranks] for part in ("--set", setting)]
        self.run_closed(closed, *launcher, COPUS, "train", *more, "--run-dir", run, *settings)

    def tensors(self, run):
        """The bytes of all checkpoints' tensors and texts, without the training time."""
        files = {}
        for path in sorted((self.folder / run / "checkpoints").glob("step-*/*")):
            content = path.read_bytes()
            if path.name in ("manifest.json", "config.toml"):
                continue
            if path.name == "training_state.json":
                state = json.loads(content)
                content = (state["step"], state["consumed_samples"])
            files[path.relative_to(self.folder / run)] = content
        return files

    def assert_alike(self, run, expected):
        self.assertEqual(self.losses(run), self.losses(expected))
        found, wanted = self.tensors(run), self.tensors(expected)
        self.assertEqual(list(found), list(wanted))
        self.assertEqual([path for path in found if found[path] != wanted[path]], [])
        for path in (self.folder / run).rglob("*"):
            if path.is_file() and path.suffix != ".toml":
                for words in (b"Run directory:", b"step 10/12"):  # of the final output and of the progress
                    self.assertNotIn(words, path.read_bytes(), path)

    def check_training_and_resuming(self, ranks):
        self.train((), f"expected-{ranks}", ranks, "run.toml")
        for closed in SOME:
            with self.subTest(ranks=ranks, closed=closed):
                run = f"run-{ranks}-{''.join(map(str, closed))}"
                self.train(closed, run, ranks, "run.toml")
                self.assert_alike(run, f"expected-{ranks}")
                shutil.rmtree(self.folder / run / "checkpoints" / "step-00000012")
                self.train(closed, run, ranks, "--resume")
                self.assert_alike(run, f"expected-{ranks}")

    # Without a launcher, the process that prints also writes the log, the lock and the checkpoints.
    def test_training_and_resuming_on_one_rank(self):
        self.check_training_and_resuming(1)

    def test_training_and_resuming_on_several_ranks(self):
        for ranks in RANKS:
            if ranks > 1:
                self.check_training_and_resuming(ranks)

    @unittest.skipUnless(os.path.exists(TORCHRUN), "there is no torchrun")
    def test_ranks_that_torchrun_starts(self):
        for ranks in RANKS:
            self.train((), f"expected-{ranks}", ranks, "run.toml")
            for closed in ONE:
                with self.subTest(ranks=ranks, closed=closed):
                    run = f"run-{ranks}-{''.join(map(str, closed))}"
                    launcher = [TORCHRUN, "--no-python", "--nproc-per-node", str(ranks), "--master-port", free_port()]
                    self.train(closed, run, ranks, "run.toml", launcher=launcher)
                    self.assert_alike(run, f"expected-{ranks}")

    def test_commands_that_read_a_run(self):
        for ranks in RANKS:
            self.train((), f"r{ranks}", ranks, "run.toml")
            run = self.folder / f"r{ranks}"
            before = self.tensors(run.name)
            for closed in ONE:
                with self.subTest(ranks=ranks, closed=closed):
                    name = "".join(map(str, closed))
                    self.run_closed(closed, COPUS, "generate", "--checkpoint", run.name, "--tokens", "4")
                    self.run_closed(closed, COPUS, "gns", "--checkpoint", run.name, "--batches", "2")
                    self.run_closed(closed, COPUS, "convert", "--from", run.name, "--to", f"hf{ranks}-{name}")
                    weights = (self.folder / f"hf{ranks}-{name}" / "model.safetensors").read_bytes()
                    stored = run / "checkpoints" / "step-00000012" / "model.safetensors"
                    if stored.exists():
                        self.assertEqual(weights, stored.read_bytes())
                    (run / "report.html").unlink()
                    self.run_closed(closed, COPUS, "report", run.name)
                    self.assertTrue((run / "report.html").read_text().rstrip().endswith("</html>"))
                    self.run_closed(closed, COPUS, "replay", run.name)
                    self.assertEqual(self.tensors(run.name), before)

    def test_commands_to_a_run(self):
        for ranks in RANKS:
            self.write_run("long.toml", steps=100000)
            settings = [part for setting in LAYOUT[ranks] for part in ("--set", setting)]
            for closed in ONE:
                with self.subTest(ranks=ranks, closed=closed):
                    run = f"live-{ranks}-{''.join(map(str, closed))}"
                    process = self.start("train", "long.toml", "--run-dir", run, *settings)
                    self.wait_for_steps(run, 2, process)
                    self.run_closed(closed, COPUS, "ctl", run, "force", "B=4,b=2")
                    process.terminate()
                    output, errors = process.communicate(timeout=TIMEOUT)
                    self.assertEqual(process.returncode, 75, output + errors)
                    self.assertIn("-> B=4,b=2", output)

    @unittest.skipUnless(importlib.util.find_spec("torch"), "PyTorch is not installed here")
    def test_the_python_package(self):
        package = pathlib.Path(os.environ.get("COPUS_PYTHON_MODULE", pathlib.Path(COPUS).parent / "python")).resolve()
        if not list((package / "copus").glob("_core.*.so")):
            self.skipTest("this build has no Python module")
        (self.folder / "rank.py").write_text(RANK)
        for ranks in RANKS:
            expected = self.advised(package, (), ranks)
            self.assertTrue(expected)
            for closed in ONE:
                with self.subTest(ranks=ranks, closed=closed):
                    self.assertEqual(self.advised(package, closed, ranks), expected)

    def advised(self, package, closed, ranks):
        """The bytes that an advised loop on `ranks` ranks writes: its weights and the adviser's logs."""
        def close():
            for descriptor in closed:
                os.close(descriptor)

        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            processes = [
                subprocess.Popen([sys.executable, "rank.py", package, folder, str(rank), str(ranks)], cwd=self.folder,
                                 stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                 preexec_fn=close, env=dict(os.environ, GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1"))
                for rank in range(ranks)]
            self.assertEqual([process.wait(timeout=TIMEOUT) for process in processes], [0] * ranks)
            names = ("weights", "logs/run.jsonl", "logs/decisions.jsonl")
            return [pathlib.Path(folder, name).read_bytes() for name in names]


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
