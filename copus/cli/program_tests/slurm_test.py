"""Tests jobs of a real SLURM, on this machine and on two virtual ones. They must train like jobs that the program
starts itself. Also tests killing a rank and ending the job.

Usage: slurm_test.py PATH_TO_COPUS [unittest options], of a build with libtorch. Exits with 77, which CTest takes for
skipped, if SLURM is not installed or does not start. A build without MPI (environment COPUS_WITH_MPI=0) is tested
without `srun --mpi`.
"""

import os
import pathlib
import re
import signal
import sys
import time
import unittest

from program_test_support import COPUS, TIMEOUT, ProgramTest
from free_port import free_port
from slurm_cluster import SlurmCluster

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent.parent
WITH_MPI = os.environ.get("COPUS_WITH_MPI", "1") == "1"
LAYOUT = ["--set", "parallel.data_parallel=2", "--set", "parallel.tensor_parallel=2", "--set", "parallel.zero_stage=1"]
GONE_WITHIN = 60  # seconds from a failure to the end of srun: a limit for slow machines, not a promise


class Slurm(ProgramTest):
    def setUp(self):
        super().setUp()
        self.addCleanup(cluster.cancel_all)

    def srun(self, *options, run, file="run.toml", variables=()):
        return cluster.start("srun", *options, COPUS, "train", file, "--run-dir", run, *LAYOUT, cwd=self.folder,
                             variables=variables)

    def assert_trains_alike(self, *options, run, variables=()):
        process = self.srun(*options, run=run, variables=variables)
        output, errors = process.communicate(timeout=TIMEOUT)
        self.assertEqual(process.returncode, 0, output + errors)
        self.assertEqual(output.count("Done:"), 1, output)
        self.assertEqual(self.losses(run), self.losses("expected"))

    @staticmethod
    def meeting_place():
        return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}

    def test_every_way_to_connect_gives_the_same_losses(self):
        self.assert_done("train", "run.toml", "--run-dir", "expected", *LAYOUT)
        self.assert_trains_alike("--nodes=1", "--ntasks=4", run="one_machine")
        # Unequal machines: three ranks on the first and one on the second.
        self.assert_trains_alike("--nodes=2", "--ntasks=4", run="tcp", variables=self.meeting_place())
        if not WITH_MPI:
            return
        kinds = cluster.run("srun", "--mpi=list")
        if "pmix" not in kinds.stdout + kinds.stderr:
            self.skipTest("this SLURM has no PMIx")
        # The MPI library would take the ranks of the other virtual machine for local ones and try to share memory with
        # them.
        self.assert_trains_alike("--nodes=2", "--ntasks=4", "--ntasks-per-node=2", "--mpi=pmix", run="mpi",
                                 variables={"OMPI_MCA_btl": "self,tcp"})

    def process_of(self, rank):
        for process in cluster.processes():
            variables = pathlib.Path(f"/proc/{process}/environ").read_text(errors="replace").split("\0")
            if f"SLURM_PROCID={rank}" in variables and os.readlink(f"/proc/{process}/exe") == COPUS + "-torch":
                return process
        return self.fail(f"there is no process of rank {rank}")

    def wait_until(self, condition, what):
        deadline = time.monotonic() + TIMEOUT
        while not condition():
            self.assertLess(time.monotonic(), deadline, what)
            time.sleep(0.05)

    @staticmethod
    def job():
        """The number of the one job."""
        return cluster.answer("squeue", "--noheader", "--format=%A").strip()

    def test_a_killed_rank_is_named(self):
        self.write_run("endless.toml", steps=1000000)
        for machines, told in [(1, 1), (2, 2)]:
            run = f"on_{machines}"
            process = self.srun(f"--nodes={machines}", "--ntasks=4", run=run, file="endless.toml",
                                variables=self.meeting_place())
            self.wait_for_steps(run, 3, process)
            rank = self.process_of(2)
            killed = time.monotonic()
            os.kill(rank, signal.SIGKILL)
            output, errors = process.communicate(timeout=TIMEOUT)
            self.assertLess(time.monotonic() - killed, GONE_WITHIN)
            self.assertNotEqual(process.returncode, 0, output + errors)
            named = re.findall(rf"copus: error: rank 2 \(pid {rank}\) failed", errors)
            self.assertEqual(len(named), told, errors)

    def test_sigterm_writes_a_checkpoint(self):
        """scancel and the time limit of a job send SIGTERM."""
        self.write_run("long.toml", steps=1000)
        self.assert_done("train", "long.toml", "--run-dir", "expected", *LAYOUT)
        for run, options in [("signalled", ["--signal=TERM"]), ("cancelled", [])]:
            process = self.srun("--nodes=1", "--ntasks=4", run=run, file="long.toml")
            self.wait_for_steps(run, 3, process)
            cluster.answer("scancel", *options, self.job())
            output, errors = process.communicate(timeout=TIMEOUT)
            self.assertEqual(process.returncode, 75, output + errors)
            steps = len(self.losses(run))
            self.assertLess(steps, 1000)
            self.assertTrue((self.folder / run / "checkpoints" / f"step-{steps:08}").exists())
            self.assert_done("train", "--resume", "--run-dir", run)
            self.assertEqual(self.losses(run), self.losses("expected"))

    def test_the_script_in_the_guide_goes_on_after_a_requeue(self):
        guide = (ROOT / "docs" / "guide.md").read_text()
        script = re.search(r"^For SLURM:\n\n```sh\n(.*?)^```$", guide, re.MULTILINE | re.DOTALL)[1]
        self.write("job.sh", script)  # it uses these names for the program and its configuration
        (self.folder / "build").mkdir()
        (self.folder / "build" / "copus").symlink_to(COPUS)
        self.write_run("my.toml", steps=100)
        self.assert_done("train", "my.toml", "--run-dir", "expected")
        self.submit_and_requeue("runs/my", "--cpus-per-task=1", "--output=job.log", "job.sh")

    def test_the_script_for_several_nodes_goes_on_after_a_requeue(self):
        (self.folder / "build").mkdir()
        (self.folder / "build" / "copus").symlink_to(COPUS)
        self.write_run("long.toml", steps=300)
        self.assert_done("train", "long.toml", "--run-dir", "expected", *LAYOUT)
        said = self.submit_and_requeue("my", "--nodes=2", "--cpus-per-task=2", "--output=job.log",
                                       str(ROOT / "scripts" / "slurm-train"), "long.toml", "my", *LAYOUT)
        self.assertEqual(said.count("Done: 300 steps"), 1, said)

    def submit_and_requeue(self, run, *arguments):
        """Submits a job of this run, sends it SIGTERM while it trains, and lets it continue after requeueing. Returns
        its output."""
        submitted = cluster.run("sbatch", *arguments, cwd=self.folder)
        self.assertEqual(submitted.returncode, 0, submitted.stderr)
        log = self.folder / run / "run.jsonl"
        self.wait_until(lambda: log.exists() and log.read_text().count("\n") > 2, "the job trains")
        cluster.answer("scancel", "--signal=TERM", self.job())
        self.wait_until(lambda: not self.job(), "the job is done")
        said = (self.folder / "job.log").read_text()
        self.assertEqual(said.count("Terminated after step"), 1, said)
        self.assertEqual(said.count("resumed    after step"), 1, said)
        self.assertEqual(self.losses(run), self.losses("expected"))
        return said


if __name__ == "__main__":
    try:
        with SlurmCluster(nodes=2) as cluster:
            unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
    except unittest.SkipTest as reason:
        print(f"skipped: {reason}")
        sys.exit(77)
