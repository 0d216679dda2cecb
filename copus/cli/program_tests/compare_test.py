"""Tests `copus compare` as a process: mistakes in an experiment, kills at random moments, repeatable results.

Usage: compare_test.py PATH_TO_COPUS [unittest options]. The runs use the virtual clock, so their times are the same on
every machine. With COPUS_KILL_ROUNDS=50 the kill test kills 50 times (5 times without).
"""

import itertools
import json
import math
import os
import pathlib
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
import tomllib
import unittest

from program_test_support import COPUS, KILL_ROUNDS, MODELLED_CLOCK, TIMEOUT, WITH_TORCH, ProgramTest

CLUSTER = """
[cluster]
clock = "virtual"
ranks_per_node = 1
within_node = { latency_microseconds = 2.0, gigabytes_per_second = 8.0 }
between_nodes = { latency_microseconds = 30.0, gigabytes_per_second = 0.5 }
teraflops_per_rank = 0.001
"""

MODELLED = """
[parallel]
data_parallel = 2
tensor_parallel = 8
pipeline_parallel = 4
""" + MODELLED_CLOCK + """
[adapt]
policy = "copus"
global_batches = [8, 16, 32]
interval_samples = 32
dwell_samples = 64
"""

EXPERIMENT = """
base = "run.toml"
set = ["evaluate.interval=0", "evaluate.interval_tokens=1024"]
seeds = [1, 2, 3]
targets = [5.2, 5.15]
final_loss = true
reference = "batch-8"

[[arm]]
name = "batch-8"

[[arm]]
name = "batch-16"
set = ["train.global_batch=16", "train.max_steps=15"]
"""

SCREENED = """
base = "run.toml"
set = ["evaluate.interval=2"]
seeds = [1, 2]
screening_seeds = [11]
targets = [4.9]
reference = "rates"

[[arm]]
name = "rate-low"
group = "rates"
set = ["optimizer.lr=1e-4"]

[[arm]]
name = "rate-high"
group = "rates"
set = ["optimizer.lr=3e-3"]

[[arm]]
name = "middle"
"""


class CompareTest(ProgramTest):
    def setUp(self):
        super().setUp()
        self.write_run("run.toml", steps=30, more=CLUSTER)
        self.write("e.toml", EXPERIMENT)

    def compare(self, *arguments, directory="c"):
        return self.copus("compare", "e.toml", "--dir", directory, *arguments)

    def assert_compared(self, *arguments, directory="c"):
        result = self.compare(*arguments, directory=directory)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        return result

    def assert_mistake(self, *says, directory="c"):
        result = self.compare(directory=directory)
        self.assertEqual(result.returncode, 2, result.stdout + result.stderr)
        self.assertEqual(result.stderr.count("copus: error:"), 1, result.stderr)
        for words in says:
            self.assertIn(words, result.stderr)

    def change(self, old, new, name="e.toml"):
        text = (self.folder / name).read_text()
        self.assertIn(old, text)
        self.write(name, text.replace(old, new))

    def child_of(self, pid):
        return int(pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])

    def results(self, directory="c"):
        return (self.folder / directory / "results.json").read_text()

    def records(self, run):
        return [json.loads(line) for line in (self.folder / run / "run.jsonl").read_text().splitlines()]


class Mistakes(CompareTest):
    def test_mistakes_leave_nothing_behind(self):
        for old, new, says in [
                ("seeds", "seds", ["unknown key \"seds\"", "did you mean \"seeds\"?"]),
                ("seeds = [1, 2, 3]", "seeds = [1]", ["two at least"]),
                ("targets = [5.2, 5.15]", "targets = [\"low\"]", ["e.toml:5", "targets", "the string \"low\""]),
                ("reference = \"batch-8\"", "reference = \"batch-9\"", ["batch-9", "batch-8"]),
                ("run.toml", "nowhere.toml", ["nowhere.toml"]),
                ("train.global_batch=16", "train.globl_batch=16", ["arm \"batch-16\"", "global_batch"]),
                ("train.global_batch=16", "train.micro_batch=8", ["evaluate.max_batches x train.micro_batch"]),
                ("train.global_batch=16", "cluster.teraflops_per_rank=1", ["another cluster.teraflops_per_rank"]),
                ("evaluate.interval_tokens=1024", "train.clip_norm=1", ["evaluate.interval_tokens"]),
                ("seeds", "draw_per_seed = true\nseeds", ["arm \"batch-8\" has no layout errors", "cluster.clock"])]:
            self.write("e.toml", EXPERIMENT)
            self.change(old, new)
            self.assert_mistake(*says)
            self.assertFalse((self.folder / "c").exists())
        self.assert_refused("compare", "no_such.toml", says=["no_such.toml"])
        self.assert_refused("compare", "e.toml", "--jobs", "0", says=["--jobs", "at least 1"])

    def test_a_directory_that_holds_something_else(self):
        (self.folder / "c").mkdir()
        self.write("c/thesis.txt", "chapter one")
        self.assert_mistake("c holds something else than an experiment")
        self.assertEqual([path.name for path in (self.folder / "c").iterdir()], ["thesis.txt"])

    def test_a_dry_run_does_nothing(self):
        output = self.assert_compared("--dry-run").stdout
        self.assertIn("batch-16, seed 3: to do", output)
        self.assertIn("6 of 6 runs left, 1 at a time", output)
        self.assertEqual(json.loads(self.assert_compared("--dry-run", "--json").stdout)["runs_left"], 6)
        self.assertFalse((self.folder / "c").exists())

    def test_the_example_of_the_documentation(self):
        root = pathlib.Path(__file__).resolve().parents[3]
        example = re.search(r"```toml\n(.*?)```", (root / "docs/comparing.md").read_text(), re.DOTALL).group(1)
        path = self.write("example.toml", example)
        result = subprocess.run([COPUS, "compare", str(path), "--dir", str(self.folder / "c"), "--dry-run"], cwd=root,
                                capture_output=True, text=True, timeout=TIMEOUT)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("21 of 21 runs left", result.stdout)
        self.assertEqual(example.count("optimizer.reference_batch"), 1)
        self.assertNotIn("optimizer.lr=", example, "rates follow from the reference batch")

    @unittest.skipIf(WITH_TORCH, "this build has libtorch")
    def test_without_libtorch_nothing_can_run(self):
        self.assert_mistake("batch-8, seed 1", "libtorch")


@unittest.skipUnless(WITH_TORCH, "needs libtorch")
class Comparisons(CompareTest):
    def test_two_arms_with_three_seeds(self):
        output = self.assert_compared("--jobs", "2").stdout
        begun = re.findall(r"(batch-\d+), seed (\d): begins", output)
        self.assertEqual(begun, [(arm, seed) for seed in "123" for arm in ("batch-8", "batch-16")])
        self.assertIn("To a held-out loss of 5.2 nats/token, 3 seeds", output)
        results = json.loads(self.results())
        self.assertEqual([result["name"] for result in results["results"]], ["batch-8", "batch-16"])
        reference, other = results["results"]
        self.check_against_the_runs(reference, other)
        self.assertFalse(list((self.folder / "c").glob("runs/*/*/checkpoints")), "checkpoints of runs that are done")
        self.assertEqual(json.loads(self.assert_compared("--json").stdout), results)
        self.assertIn("0 of 6 runs left", self.assert_compared("--dry-run").stdout)

    def check_against_the_runs(self, reference, other):
        """Recomputes the times to the first target, and the statistics based on them, from the logs."""
        times = {}
        for arm in ("batch-8", "batch-16"):
            for seed in (1, 2, 3):
                records = self.records(f"c/runs/{arm}/seed-{seed}")
                curve = [(record["held_out_loss"], record["elapsed_seconds"]) for record in records
                         if record["held_out_loss"] is not None]
                self.assertEqual(len(curve), 8, "after each 1024 of 7680 tokens, whatever the batch, and at the end")
                after = next(i for i, (loss, _) in enumerate(curve) if loss <= 5.2)
                (high, begin), (low, end) = curve[after - 1], curve[after]
                times[arm, seed] = begin + (end - begin) * (high - 5.2) / (high - low)
        for result, arm in ((reference, "batch-8"), (other, "batch-16")):
            for run in result["targets"][0]["runs"]:
                self.assertAlmostEqual(run["seconds"] / times[arm, run["seed"]], 1, places=12)
        differences = [math.log(times["batch-16", seed] / times["batch-8", seed]) for seed in (1, 2, 3)]
        mean = sum(differences) / 3
        deviation = math.sqrt(sum((difference - mean) ** 2 for difference in differences) / 2)
        found = other["targets"][0]["log_seconds_difference"]
        self.assertAlmostEqual(found["mean"], mean, places=12)
        self.assertAlmostEqual(found["high"] - found["low"], 2 * 4.302653 * deviation / math.sqrt(3), places=5)

    def test_a_target_out_of_reach_is_refused_and_named(self):
        self.change("[5.2, 5.15]", "[5.2, 0.5]")
        output = self.assert_compared().stdout
        self.assertIn("not reported: seeds 1, 2 and 3 never reached it", output)
        for result in json.loads(self.results())["results"]:
            self.assertIsNone(result["targets"][0]["refusal"])
            self.assertEqual(result["targets"][1]["refusal"], "seeds 1, 2 and 3 never reached it")
            self.assertIsNone(result["targets"][1]["seconds"])

    def test_the_fastest_of_a_group_is_compared(self):
        self.write("e.toml", SCREENED)
        output = self.assert_compared().stdout
        self.assertIn("Group rates: rate-high, the fastest to a held-out loss of 4.9", output)
        self.assertRegex(output, "rate-low +not reported: seed 11 never reached it")
        self.assertEqual(sorted(str(path.parent.relative_to(self.folder / "c/runs"))
                                for path in (self.folder / "c").glob("runs/*/*/summary.json")),
                         ["middle/seed-1", "middle/seed-2", "rate-high/seed-1", "rate-high/seed-11",
                          "rate-high/seed-2", "rate-low/seed-11"])
        results = json.loads(self.results())
        self.assertEqual(results["groups"][0]["chosen"], "rate-high")
        self.assertEqual([result["arm"] for result in results["results"]], ["rate-high", "middle"])

    def test_each_seed_may_have_its_own_layout_errors(self):
        self.write_run("run.toml", steps=30, more=MODELLED)
        self.change("seeds", "draw_per_seed = true\nseeds")
        self.assert_compared()
        self.assertTrue(json.loads(self.results())["draw_per_seed"])
        for arm, seed in itertools.product(("batch-8", "batch-16"), (1, 2, 3)):
            run = tomllib.loads((self.folder / f"c/runs/{arm}/seed-{seed}/config.toml").read_text())
            self.assertEqual(run["cluster"]["truth_seed"], seed)
        self.change("draw_per_seed = true", "draw_per_seed = false")
        self.assert_mistake("cluster.truth_seed", "--dir")

    def test_what_is_done_cannot_be_changed(self):
        self.assert_compared()
        before = self.results()
        for old, new, says in [
                ("train.global_batch=16", "train.global_batch=24", ["arm \"batch-16\"", "train.global_batch", "--dir"]),
                ("name = \"batch-16\"", "name = \"renamed\"", ["no longer has arm \"batch-16\", seed 1"]),
                ("[1, 2, 3]", "[1, 2, 4]", ["no longer has arm \"batch-16\", seed 3"]),
                ("[5.2, 5.15]", "[5.2]", ["targets has changed"])]:
            self.write("e.toml", EXPERIMENT)
            self.change(old, new)
            self.assert_mistake(*says)
            self.assertEqual(self.results(), before)
        self.write("e.toml", EXPERIMENT)
        self.change("interval = 20", "interval = 21", name="run.toml")  # the experiment itself sets it
        self.change("[1, 2, 3]", "[1, 2, 3, 4]")
        output = self.assert_compared().stdout
        self.assertEqual(re.findall(r", seed (\d): begins", output), ["4", "4"])
        self.assertEqual(len(json.loads(self.results())["results"][0]["final_loss"]["runs"]), 4)

    def test_a_run_that_fails_is_named_and_tried_again(self):
        self.write_run("run.toml", steps=200, checkpoint_interval=10, more=CLUSTER)
        process = self.start("compare", "e.toml", "--dir", "c", start_new_session=True)
        self.wait_for_steps("c/runs/batch-8/seed-1", 3, process)
        trainer = self.child_of(process.pid)
        os.kill(trainer, signal.SIGKILL)
        output, errors = process.communicate(timeout=TIMEOUT)
        self.assertEqual(process.returncode, 1, output + errors)
        self.assertIn("batch-8, seed 1: ended with exit code 137", output)
        self.assertIn("not reported: seed 1 failed", output)
        self.assertEqual(self.assert_compared().stdout.count(": begins"), 1)

    def test_what_no_run_can_do_is_the_users_mistake(self):
        (self.folder / "corpus.txt").unlink()
        self.assert_mistake("batch-8, seed 1", "corpus.txt")

    def test_one_process_at_a_time(self):
        self.write_run("run.toml", steps=2000, more=CLUSTER)
        for directory, jobs, printed, ends in (("c", 1, "--dir c", signal.SIGTERM),
                                               ("my c", 2, "--dir 'my c' --jobs 2", signal.SIGHUP)):
            process = self.start("compare", "e.toml", "--dir", directory, "--jobs", str(jobs))
            self.wait_for_steps(f"{directory}/runs/batch-8/seed-1", 3, process)
            self.assert_mistake(f"another process is writing into {directory}", directory=directory)
            process.send_signal(ends)
            output, errors = process.communicate(timeout=TIMEOUT)
            self.assertEqual(process.returncode, 75, output + errors)
            self.assertIn(f"The same command goes on: {shlex.quote(COPUS)} compare e.toml {printed}\n", errors)


@unittest.skipUnless(WITH_TORCH, "needs libtorch")
class Interruptions(CompareTest):
    def test_kills_at_random_moments_change_no_byte_of_the_results(self):
        self.check_kills(CLUSTER)  # on this clock no run may resume from its checkpoints

    def test_nor_do_they_where_runs_go_on_from_their_checkpoints(self):
        self.check_kills(MODELLED)

    def check_kills(self, cluster):
        self.write_run("run.toml", steps=60, checkpoint_interval=3, more=cluster)
        self.change("train.max_steps=15", "train.max_steps=30")
        self.change("[5.2, 5.15]", "[4.72, 4]")  # late in the runs, so that the times of all earlier steps count
        self.assert_compared("--jobs", "2", directory="whole")
        seed = random.randrange(2**32)
        print(f"seed of the kills: {seed}")
        moments = random.Random(seed)
        for round_number in range(KILL_ROUNDS):
            process = self.start("compare", "e.toml", "--dir", "c", "--jobs", str(1 + round_number % 2))
            self.wait_for_a_run(moments.randrange(28), process)
            time.sleep(moments.uniform(0, 0.05))
            process.kill()
            process.communicate()
        self.assert_compared("--jobs", "2")
        self.assertEqual(self.results(), self.results("whole"))

    def wait_for_a_run(self, steps, process):
        """Waits until a run has done this many steps and is still running, or no run is left."""
        begun = time.time()

        def is_there(log):
            try:
                return log.stat().st_mtime > begun and log.read_bytes().count(b"\n") >= steps
            except FileNotFoundError:  # the run starts anew
                return False

        deadline = time.monotonic() + TIMEOUT
        while time.monotonic() < deadline and process.poll() is None:
            if any(is_there(log) for log in (self.folder / "c").glob("runs/*/*/run.jsonl")):
                return
            time.sleep(0.002)

    def test_no_run_outlives_the_comparison(self):
        self.write_run("run.toml", steps=5000, more=CLUSTER)
        process = self.start("compare", "e.toml", "--dir", "c")
        self.wait_for_steps("c/runs/batch-8/seed-1", 3, process)
        trainer = pathlib.Path(f"/proc/{self.child_of(process.pid)}/stat")
        process.kill()
        process.communicate()
        deadline = time.monotonic() + 5
        while trainer.exists() and trainer.read_text().rpartition(")")[2].split()[0] != "Z":
            self.assertLess(time.monotonic(), deadline, "the run goes on")
            time.sleep(0.01)

    def test_on_the_real_clock_a_run_goes_on_from_its_checkpoint(self):
        self.check_going_on("")

    def test_on_the_modelled_clock_a_run_goes_on_from_its_checkpoint(self):
        self.check_going_on(MODELLED)
        self.assert_compared(directory="whole")
        self.assertEqual(self.results(), self.results("whole"))

    def test_a_run_whose_checkpoints_are_damaged_is_not_begun_again(self):
        self.write_run("run.toml", steps=300)
        process = self.start("compare", "e.toml", "--dir", "c")
        self.wait_for_steps("c/runs/batch-8/seed-1", 20, process)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=TIMEOUT)
        run = self.folder / "c/runs/batch-8/seed-1"
        for manifest in run.glob("checkpoints/step-*/manifest.json"):
            manifest.write_bytes(manifest.read_bytes()[:10])
        log = (run / "run.jsonl").read_bytes()
        result = self.copus("compare", "e.toml", "--dir", "c")
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("manifest.json", result.stdout + result.stderr)
        self.assertEqual((run / "run.jsonl").read_bytes(), log)

    def check_going_on(self, cluster):
        self.write_run("run.toml", steps=300, more=cluster)
        process = self.start("compare", "e.toml", "--dir", "c")
        self.wait_for_steps("c/runs/batch-8/seed-1", 20, process)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=TIMEOUT)
        self.assertEqual(process.returncode, 130, output + errors)
        checkpoints = self.folder / "c/runs/batch-8/seed-1/checkpoints"
        newest = max(path for path in checkpoints.iterdir() if re.fullmatch(r"step-\d+", path.name))
        # A copy under another step's name must stop neither the comparison nor the run.
        shutil.copytree(newest, checkpoints / "step-00009999")
        self.assertIn("batch-8, seed 1: interrupted", self.assert_compared("--dry-run").stdout)
        self.assertIn("batch-8, seed 1: goes on", self.assert_compared().stdout)
        self.losses("c/runs/batch-8/seed-1")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
