"""Tests jobs of several ranks that the program, torchrun or mpirun starts: all layouts must train alike. Also tests
jobs in which a rank fails or has other inputs than the rest.

Usage: several_ranks_test.py PATH_TO_COPUS [unittest options], of a build with libtorch. With COPUS_KILL_ROUNDS=50 the
kill test makes 50 rounds (5 without). A build without MPI (environment COPUS_WITH_MPI=0) is tested without mpirun.
"""

import json
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
import unittest
import unittest.mock

from free_port import free_port
from program_test_support import COPUS, KILL_ROUNDS, MODEL, ROOT, TIMEOUT, TORCHRUN, ProgramTest
from rank_processes import ranks_of

WITH_MPI = os.environ.get("COPUS_WITH_MPI", "1") == "1"


class SeveralRanks(ProgramTest):
    """Layouts of several ranks that the program starts itself."""

    def train(self, run, *settings, more=()):
        overrides = [part for setting in settings for part in ("--set", setting)]
        return self.assert_done("train", "run.toml", "--run-dir", run, *overrides, *more)

    def setUp(self):
        super().setUp()
        self.write_run("run.toml", steps=12)

    def assert_close(self, run, expected):
        for step, values in self.losses(expected).items():
            self.assertAlmostEqual(float(self.losses(run)[step][0]) / float(values[0]), 1, delta=1e-5)

    def test_every_layout_trains_alike(self):
        self.train("one")
        result = self.train("pipeline", "parallel.pipeline_parallel=2")
        self.assertIn("runs in    d=1,t=1,p=2,B=8,b=4 on 2 ranks", result.stdout)
        self.assertEqual(result.stdout.count("Done:"), 1)
        self.assertEqual(result.stderr, "")
        self.assertEqual(self.losses("pipeline"), self.losses("one"))
        self.train("data", "parallel.data_parallel=2")
        self.train("both", "parallel.data_parallel=2", "parallel.pipeline_parallel=2", "parallel.zero_stage=1",
                   "parallel.schedule=zb-h1", "train.recompute=full")
        self.assertEqual(self.losses("both"), self.losses("data"))
        self.assert_close("data", "one")
        self.assertEqual(json.loads((self.folder / "both" / "run.jsonl").read_text().splitlines()[0])["strategy"],
                         "d=2,t=1,p=2,schedule=zb-h1,zero=1,recompute=full")
        self.assert_done("generate", "--checkpoint", "both", "--prompt", "the", "--tokens", "5")

    def test_a_run_goes_on_in_another_layout(self):
        self.train("expected", "train.max_steps=24")
        self.train("r", "parallel.pipeline_parallel=2", "train.max_steps=24", "checkpoint.interval=8",
                   "parallel.schedule=gpipe")
        checkpoints = self.folder / "r" / "checkpoints"
        shutil.rmtree(checkpoints / "step-00000024")  # as if the run had been killed
        result = self.assert_done("train", "--resume", "--run-dir", "r", "--set", "parallel.pipeline_parallel=1")
        self.assertIn("parallel.pipeline_parallel: 2 -> 1", result.stdout)
        self.assertEqual(self.losses("r"), self.losses("expected"))

    def test_terminate_and_interrupt(self):
        self.write_run("long.toml", steps=100)
        self.assert_done("train", "long.toml", "--run-dir", "expected")
        for name, end, code, rank in [("terminated", signal.SIGTERM, 75, None),
                                      ("interrupted", signal.SIGINT, 130, None),
                                      ("noticed", signal.SIGHUP, 75, 1),
                                      ("asked", signal.SIGINT, 130, 1)]:
            process = self.start("train", "long.toml", "--run-dir", name, "--set", "parallel.pipeline_parallel=2",
                                 *([] if rank is None else ["--set", "heal.enabled=false"]))
            self.wait_for_steps(name, 3, process)
            if rank is None:
                process.send_signal(end)
            else:  # without healing, a signal to any rank counts for all
                ranks = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
                os.kill(int(ranks[rank]), end)
            output, errors = process.communicate(timeout=TIMEOUT)
            self.assertEqual(process.returncode, code, output + errors)
            self.assertIn(f"copus train --resume --run-dir {name}", output)
            steps = len(self.losses(name))
            self.assertTrue((self.folder / name / "checkpoints" / f"step-{steps:08}").exists())
            self.assert_done("train", "--resume", "--run-dir", name)
            self.assertEqual(self.losses(name), self.losses("expected"))

    def start_under_torchrun(self, run, ranks, *, torchrun=(), more=()):
        if not os.path.exists(TORCHRUN):
            self.skipTest(f"there is no {TORCHRUN}")
        command = [TORCHRUN, "--no-python", "--nproc-per-node", str(ranks), "--master-port", free_port(), *torchrun,
                   COPUS, "train", "long.toml", "--run-dir", run, "--set", f"parallel.pipeline_parallel={ranks}", *more]
        process = subprocess.Popen(command, cwd=self.folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        pids = ranks_of(process.pid, ranks, lambda: process.poll() is None, "RANK")
        self.assertIsNotNone(pids)
        self.wait_for_steps(run, 3, process)
        return process, pids

    def test_torchrun_s_ranks_end_in_order_when_any_is_told_to_or_torchrun_is_killed(self):
        self.write_run("long.toml", steps=800)
        self.assert_done("train", "long.toml", "--run-dir", "expected")
        for name, end, rank in [("told", signal.SIGTERM, 1), ("asked", signal.SIGINT, 1),
                                ("orphaned", signal.SIGKILL, None)]:
            process, pids = self.start_under_torchrun(name, ranks=2)
            os.kill(process.pid if rank is None else pids[rank], end)
            output, errors = process.communicate(timeout=TIMEOUT)  # until the last rank has closed them
            self.assertIn(f"copus train --resume --run-dir {name}", output)
            self.assertEqual(errors.count("copus:"), 1 if rank is None else 0, errors)
            if rank is None:
                self.assertIn(f"(pid {process.pid}) is gone; the job is told to end", errors)
            steps = len(self.losses(name))
            self.assertTrue((self.folder / name / "checkpoints" / f"step-{steps:08}").exists())
            self.assert_done("train", "--resume", "--run-dir", name)
            self.assertEqual(self.losses(name), self.losses("expected"))

    def test_a_notice_to_a_rank_of_torchrun_ends_the_job_with_a_checkpoint(self):
        self.write_run("long.toml", steps=100_000)
        process, pids = self.start_under_torchrun("r", ranks=2)
        os.kill(pids[1], signal.SIGUSR1)
        output, errors = process.communicate(timeout=TIMEOUT)
        self.assertIn("copus train --resume --run-dir r", output, errors)
        self.assertTrue((self.folder / "r" / "checkpoints" / f"step-{len(self.losses('r')):08}").exists())

    def test_torchrun_restarts_a_run_whose_rank_is_killed_and_it_goes_on_from_its_checkpoint(self):
        self.write_run("long.toml", steps=400, checkpoint_interval=40)
        self.assert_done("train", "long.toml", "--run-dir", "expected")
        process, pids = self.start_under_torchrun("r", 2, torchrun=["--max-restarts", "1"], more=["--resume"])
        self.wait_for_checkpoint("r", 40)
        os.kill(pids[1], signal.SIGKILL)
        output, errors = process.communicate(timeout=TIMEOUT)
        self.assertEqual(process.returncode, 0, output + errors)
        self.assertEqual(output.count("resumed    after step"), 1, output)
        self.assertEqual(self.losses("r"), self.losses("expected"))

    def test_a_killed_rank_is_named_and_the_run_goes_on(self):
        self.write_run("long.toml", steps=200, checkpoint_interval=10)
        process = self.start("train", "long.toml", "--run-dir", "r", "--set", "parallel.pipeline_parallel=2", "--set",
                             "heal.enabled=false")
        self.wait_for_steps("r", 25, process)
        ranks = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        self.assertEqual(len(ranks), 2)
        os.kill(int(ranks[1]), signal.SIGKILL)
        output, errors = process.communicate(timeout=TIMEOUT)
        self.assertEqual(process.returncode, 1, output + errors)
        self.assertEqual(errors.count("copus:"), 1, errors)
        self.assertRegex(errors, r"rank 1 \(pid \d+\) failed at step \d+, .*killed by signal 9")
        self.assert_done("train", "--resume", "--run-dir", "r")
        self.assert_done("train", "long.toml", "--run-dir", "expected")
        self.assertEqual(self.losses("r"), self.losses("expected"))

    def test_mistakes_are_told_once(self):
        ranks = ["--set", "parallel.data_parallel=2"]
        self.assert_refused("train", "run.toml", "--run-dir", "r", *ranks, "--set", "train.micro_batch=3",
                            says=["global_batch"])
        self.assert_refused("train", "run.toml", "--run-dir", "r", *ranks, "--set", 'data.train="missing.txt"',
                            says=["missing.txt"])
        with unittest.mock.patch.dict(os.environ, CUDA_VISIBLE_DEVICES="", HIP_VISIBLE_DEVICES=""):
            self.assert_refused("train", "run.toml", "--run-dir", "r", *ranks, "--set", 'train.device="cuda"',
                                says=["train.device", "cpu"])
        self.assert_refused("train", "run.toml", "--run-dir", "r", *ranks, "--set", "optimizer.lr=1e30", "--set",
                            "optimizer.schedule=constant", "--set", "train.clip_norm=0", says=["diverged"],
                            leaves_run_dir=True)

    def run_under(self, launcher, run, *settings, **options):
        overrides = [part for setting in settings for part in ("--set", setting)]
        command = [*launcher, COPUS, "train", "run.toml", "--run-dir", run, *overrides]
        result = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=TIMEOUT, **options)
        if result.returncode == 77:  # exit code of scripts/two-hosts if it is not allowed to make hosts
            self.skipTest(result.stderr)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_every_launcher_gives_the_same_losses(self):
        layout = ["parallel.data_parallel=2", "parallel.tensor_parallel=2", "parallel.zero_stage=1", "train.threads=1"]
        self.train("expected", *layout)
        with self.subTest("torchrun"):
            if not os.path.exists(TORCHRUN):
                self.skipTest(f"there is no {TORCHRUN}")
            self.run_under([TORCHRUN, "--no-python", "--nproc-per-node", "4", "--master-port", free_port()], "torchrun",
                           *layout)
            self.assertEqual(self.losses("torchrun"), self.losses("expected"))
        if not WITH_MPI:
            self.skipTest("this build has no MPI")
        with self.subTest("mpirun"):
            root = ["--allow-run-as-root"] if os.getuid() == 0 else []
            self.run_under(["mpirun", *root, "--oversubscribe", "-n", "4"], "mpirun", *layout)
            self.assertEqual(self.losses("mpirun"), self.losses("expected"))
        with self.subTest("two hosts"):
            self.run_under([str(ROOT / "scripts" / "two-hosts")], "two_hosts", *layout)
            self.assertEqual(self.losses("two_hosts"), self.losses("expected"))

    def test_a_rank_that_is_killed_or_stopped_while_training_ends_the_job(self):
        self.write_run("endless.toml", steps=1000000)
        moments = random.Random(2)
        for number in range(KILL_ROUNDS):
            run, how = f"r{number}", moments.choice([signal.SIGKILL, signal.SIGSTOP])
            process = self.start("train", "endless.toml", "--run-dir", run, "--set", "parallel.data_parallel=2", "--set",
                                 "parallel.pipeline_parallel=2", "--set", "heal.enabled=false")
            self.wait_for_steps(run, 1, process)
            time.sleep(moments.uniform(0, 0.3))
            ranks = sorted(int(pid) for pid in subprocess.check_output(["pgrep", "-P", str(process.pid)]).split())
            self.assertEqual(len(ranks), 4)
            victim = moments.randrange(4)
            os.kill(ranks[victim], how)
            failed = time.monotonic()
            _, errors = process.communicate(timeout=TIMEOUT)
            self.assertLess(time.monotonic() - failed, 60, f"round {number}, {how.name}")
            self.assertEqual(process.returncode, 1)
            self.assertEqual(errors.count("copus: error:"), 1, errors)
            self.assertIn(f"rank {victim} (pid {ranks[victim]}) failed at ", errors)
            self.assertFalse([pid for pid in ranks if os.path.exists(f"/proc/{pid}")])

    def test_a_rank_killed_while_all_write_costs_at_most_the_checkpoint_at_hand(self):
        """The model is so large that all four ranks write."""
        model = MODEL.replace("= 32", "= 256").replace("= 64", "= 1536").replace("layers = 2", "layers = 5")
        self.write_run("long.toml", steps=100000, checkpoint_interval=1, model=model)
        moments = random.Random(5)
        arguments = ["train", "long.toml", "--resume", "--run-dir", "r", "--set", "parallel.data_parallel=2", "--set",
                     "parallel.pipeline_parallel=2", "--set", "parallel.zero_stage=1", "--set", "heal.enabled=false"]
        checkpoints, durable = self.folder / "r" / "checkpoints", 0
        for number in range((KILL_ROUNDS + 1) // 2):
            process = self.start(*arguments)
            self.wait_for_steps("r", durable + 3, process)
            time.sleep(moments.uniform(0, 0.5))
            children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            os.kill(int(moments.choice(children)), signal.SIGKILL)
            _, errors = process.communicate(timeout=TIMEOUT)
            self.assertEqual(process.returncode, 1, errors)
            complete = sorted(path.name for path in checkpoints.iterdir() if re.fullmatch(r"step-\d+", path.name))
            self.assertTrue(complete, f"round {number}")
            self.assertGreaterEqual(int(complete[-1][5:]), durable)
            durable = int(complete[-1][5:])
            files = {path.name for path in (checkpoints / complete[-1]).iterdir()}
            self.assertIn("optimizer-00004-of-00004.safetensors", files)
            self.assert_done("generate", "--checkpoint", "r", "--tokens", "1")  # verifies every checksum
        self.assert_done("train", "--resume", "--run-dir", "r", "--set", f"train.max_steps={durable + 1}", "--set",
                         "parallel.data_parallel=1", "--set", "parallel.pipeline_parallel=1")
        self.assertFalse(list(checkpoints.glob("*.partial")))

    def environments(self, ranks):
        """Environments of ranks as another launcher sets them."""
        port = free_port()
        return [os.environ | {"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank),
                              "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
                for rank in range(ranks)]

    def test_a_job_of_another_size_is_refused(self):
        self.assert_refused("train", "run.toml", "--run-dir", "r", "--set", "parallel.tensor_parallel=2", "--set",
                            "heal.enabled=false",
                            says=["d=1,t=2,p=1", "2 ranks", "with 1"], env=self.environments(1)[0])

    def test_an_environment_of_half_a_job_is_refused_at_once(self):
        alone = self.environments(3)[0]
        begin = time.monotonic()
        self.assert_refused("train", "run.toml", "--run-dir", "r", says=["started with 3 (WORLD_SIZE)", "unset RANK"],
                            env=alone)
        self.assertLess(time.monotonic() - begin, 60, "waited for ranks that nobody has started")
        for variables, named in [({"LOCAL_RANK": "0"}, "RANK"), ({"PMI_SIZE": "4", "PMI_RANK": "0"}, "PMI_SIZE"),
                                 ({"SLURM_PROCID": "1"}, "SLURM_STEP_ID"), ({"COPUS_SEGMENT": "3"}, "COPUS_RANK"),
                                 ({"COPUS_RANK": "0", "COPUS_WORLD_SIZE": "2", "COPUS_SEGMENT": "0"},
                                  "COPUS_SEGMENT is 0, which is none of the files"),
                                 ({"COPUS_RANK": "0", "COPUS_WORLD_SIZE": "2", "COPUS_SEGMENT": "99"}, "COPUS_SEGMENT"),
                                 ({"COPUS_RANK": "0", "COPUS_WORLD_SIZE": "2", "COPUS_CONTROL": "99",
                                   "COPUS_PROCESS": "0"}, "COPUS_CONTROL")]:
            self.assert_refused("train", "run.toml", "--run-dir", "r", says=[named], env=os.environ | variables)

    def assert_ranks_differ(self, commands, says, creates_not):
        ranks = [self.start("train", *command, "--set", "parallel.data_parallel=2", env=environment)
                 for command, environment in zip(commands, self.environments(2))]
        errors = [rank.communicate(timeout=TIMEOUT)[1] for rank in ranks]
        self.assertEqual(ranks[0].returncode, 2, errors)
        self.assertNotEqual(ranks[1].returncode, 0, errors)
        self.assertEqual("".join(errors).count("copus: error:"), 1, errors)
        for words in ["rank 1", *says]:
            self.assertIn(words, errors[0])
        self.assertFalse((self.folder / creates_not).exists())

    def test_ranks_that_would_train_something_else_are_refused(self):
        """Ranks on machines without shared files would differ like this."""
        self.assert_ranks_differ([["run.toml", "--run-dir", "r"],
                                  ["run.toml", "--run-dir", "r", "--set", "optimizer.lr=2e-3"]],
                                 says=["lr = 0.002", "lr = 0.001"], creates_not="r")
        self.train("begun", "parallel.data_parallel=2")
        self.assert_ranks_differ([["run.toml", "--run-dir", "begun", "--resume", "--set", "train.max_steps=24"],
                                  ["run.toml", "--run-dir", "elsewhere", "--resume", "--set", "train.max_steps=24"]],
                                 says=["step 12", "none"], creates_not="elsewhere")

    def test_a_checkpoint_that_cannot_be_written_ends_the_job(self):
        """Only rank 0 sees the error, while the other rank trains on."""
        self.write_run("long.toml", steps=100000)
        process = self.start("train", "long.toml", "--run-dir", "r", "--set", "parallel.data_parallel=2", "--set",
                             "checkpoint.interval=20")
        ranks = ranks_of(process.pid, 2, lambda: process.poll() is None)
        # Stands in for a full disk: there is room for the log, but not for a checkpoint.
        resource.prlimit(ranks[0], resource.RLIMIT_FSIZE, (50_000, 50_000))
        output, errors = process.communicate(timeout=TIMEOUT)
        self.assertEqual(process.returncode, 2, output + errors)
        self.assertEqual(errors.count("copus:"), 1, errors)
        self.assertRegex(errors, r"cannot write [^\n]*checkpoints[^\n]*File too large")

    def test_a_mistake_that_one_rank_meets_is_told_once(self):
        """Only rank 0 writes, while the other rank waits for it."""
        self.assert_refused("train", "run.toml", "--run-dir", "run.toml/r", "--set", "parallel.data_parallel=2",
                            says=["run.toml/r"])

    def test_trace(self):
        self.train("r", "parallel.data_parallel=2", "parallel.pipeline_parallel=2", more=["--trace", "3"])
        events = json.loads((self.folder / "r" / "timeline.json").read_text())["traceEvents"]
        self.assertEqual(len({event["pid"] for event in events}), 4)
        forward = [event for event in events if event["name"] == "F"]
        self.assertEqual({event["args"]["step"] for event in forward}, {2, 3, 4})
        self.assertEqual(len(forward), 3 * 4)  # steps x ranks, one micro-batch each

    def test_the_virtual_clock_shows_the_modelled_cluster(self):
        cluster = ["cluster.clock=virtual", "cluster.ranks_per_node=1", "cluster.teraflops_per_rank=1e-3",
                   "cluster.between_nodes={latency_microseconds=1000,gigabytes_per_second=1}",
                   "cluster.within_node={latency_microseconds=1000,gigabytes_per_second=1}"]
        self.train("real", "parallel.pipeline_parallel=2")
        seconds = []
        for run in ["first", "second"]:
            self.train(run, "parallel.pipeline_parallel=2", *cluster)
            self.assertEqual(self.losses(run), self.losses("real"))
            lines = (self.folder / run / "run.jsonl").read_text().splitlines()
            seconds.append([json.loads(line)["step_seconds"] for line in lines])
        self.assertEqual(seconds[0], seconds[1])
        self.assertGreater(min(seconds[0]), 1e-3)

    def test_predictions_of_steps_learn_from_them(self):
        self.write_run("run.toml", steps=20)
        cluster = ["cluster.clock=virtual", "cluster.ranks_per_node=1", "cluster.teraflops_per_rank=1e-3",
                   "cluster.between_nodes={latency_microseconds=1000,gigabytes_per_second=1}",
                   "cluster.within_node={latency_microseconds=1000,gigabytes_per_second=1}"]
        layout = ["parallel.data_parallel=2"]

        def records_of(run):
            return [json.loads(line) for line in (self.folder / run / "run.jsonl").read_text().splitlines()]

        def errors_of(run):
            return [abs(record["predicted_step_seconds"] / record["step_seconds"] - 1) for record in records_of(run)]

        self.assertIn("step time", self.train("r", *cluster, *layout).stdout.lower())
        predicted = [record["predicted_step_seconds"] for record in records_of("r")]
        self.assertEqual(len(set(predicted[:3])), 1, "the first steps warm up")
        self.assertNotEqual(predicted[2], predicted[3])
        self.assertLess(max(errors_of("r")[15:]), 0.01)
        profile = json.loads((self.folder / "r" / "profile.json").read_text())
        self.assertIn("d=2,", profile["cells"][0]["configuration"])
        self.assertEqual(profile["cells"][0]["steps"], 18)

        resumed = self.assert_done("train", "--resume", "--run-dir", "r", "--set", "train.max_steps=30")
        self.assertIn("after 18 steps in r/profile.json", resumed.stdout)
        self.assertIn("Step time: ", resumed.stdout)
        # The first step of a process is shorter than later ones, on this clock too.
        self.assertLess(max(errors_of("r")[21:]), 0.01)
        named = "cluster.profile=r/profile.json"
        self.train("other", *cluster, *layout, named)
        self.assertLess(max(errors_of("other")[1:]), 0.01)

        self.write("bad.json", "{")
        for settings, says in [(["cluster.profile=bad.json"], ["bad.json", "damaged", "copus profile"]),
                               ([named, "train.sequence_length=16"],
                                ["r/profile.json", "sequence_length is 32 there and 16 here"])]:
            overrides = [part for setting in cluster + layout + settings for part in ("--set", setting)]
            self.assert_refused("train", "run.toml", "--run-dir", "new", *overrides, leaves_run_dir=True, says=says)
        self.assertFalse((self.folder / "new").exists())
        self.write("r/profile.json", "{")
        self.assert_refused("train", "--resume", "--run-dir", "r", "--set", "train.max_steps=40", leaves_run_dir=True,
                            says=["r/profile.json", "damaged"])

        self.train("plain", *layout)
        self.assertFalse((self.folder / "plain" / "profile.json").exists())
        self.assertIsNone(records_of("plain")[0]["predicted_step_seconds"])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
