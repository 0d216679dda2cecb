"""Tests jobs whose ranks fail. Ranks of our own launcher receive signals of many kinds, at random moments and while the
job moves into another configuration. The job must continue with the remaining ranks, a new rank must replace each lost
one, no sample may be lost or repeated, and the losses must be those of an undisturbed run.

Usage: heal_test.py PATH_TO_COPUS [unittest options]. With COPUS_HEAL_ROUNDS=100 it makes 100 rounds (6 without).
"""

import collections
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
import unittest

from free_port import free_port
from program_test_support import COPUS, TIMEOUT, TORCHRUN, WITH_TORCH, ProgramTest
from rank_processes import Places, children, is_gone, rank_of, ranks_of

ROUNDS = int(os.environ.get("COPUS_HEAL_ROUNDS", "6"))
RANKS = 4
STEPS = 150
SWITCH_EVERY = 5
# Losses of different layouts are equal up to rounding errors, which grow over the steps.
RELATIVE = 2e-2

MODEL = """
[model]
architecture = "llama"
vocab_size = 256
hidden_size = 64
intermediate_size = 128
num_hidden_layers = 4
num_attention_heads = 4
num_key_value_heads = 4
"""
CLUSTER = """
[cluster]
ranks_per_node = 4
within_node = { latency_microseconds = 5.0, gigabytes_per_second = 4.0 }
between_nodes = { latency_microseconds = 5.0, gigabytes_per_second = 4.0 }
device = { matmul_teraflops = 0.1 }
"""
ADAPT = """
[adapt]
policy = "script"
file = "script.jsonl"
zero_stages = [0, 1, 2, 3]
max_tensor_parallel = 4
"""
# The signals, listed as often as they should occur. A stopped rank is noticed after two seconds.
STRIKES = [signal.SIGKILL] * 6 + [signal.SIGSEGV] * 2 + [signal.SIGABRT] * 2 + [signal.SIGSTOP]


def script(seed):
    """Makes a script with a switch every few steps."""
    chance = random.Random(seed)
    lines = []
    for step in range(SWITCH_EVERY, STEPS, SWITCH_EVERY):
        d, t, p = chance.choice([(4, 1, 1), (2, 2, 1), (2, 1, 2), (1, 2, 2), (1, 1, 4), (1, 4, 1)])
        zero = chance.choice([0, 1, 2, 3]) if d > 1 else 0
        lines.append(json.dumps({"after_step": step, "configuration": f"d={d},t={t},p={p},B=8,b=1,zero={zero}"}))
    return "\n".join(lines) + "\n"


class HealingTest(ProgramTest):
    def setUp(self):
        super().setUp()
        self.write("script.jsonl", script(seed=1))
        parallel = "[parallel]\ndata_parallel = 2\npipeline_parallel = 2\nzero_stage = 1\n"
        self.write_run("static.toml", steps=STEPS, checkpoint_interval=40, model=MODEL + CLUSTER + parallel)
        self.write_run("moving.toml", steps=STEPS, checkpoint_interval=40, model=MODEL + CLUSTER + parallel + ADAPT)
        self.settings = ["--set", "train.micro_batch=1", "--set", "evaluate.interval=50"]

    def records(self, run):
        return [json.loads(line) for line in (self.folder / run / "run.jsonl").read_text().splitlines()]

    def living_ranks(self, process):
        return [pid for pid in children(process.pid) if not is_gone(pid) and rank_of(pid) is not None]

    def kill_ranks(self, process):
        for pid in self.living_ranks(process):
            os.kill(pid, signal.SIGKILL)

    def assert_same_training(self, run, expected):
        """Expects every step exactly once, with the same samples and the same losses."""
        records, others = self.records(run), self.records(expected)
        self.assertEqual([record["step"] for record in records], list(range(1, STEPS + 1)))
        for record, other in zip(records, others, strict=True):
            self.assertEqual(record["consumed_samples"], other["consumed_samples"])
            self.assertAlmostEqual(record["loss"] / other["loss"], 1, delta=RELATIVE, msg=f"step {record['step']}")

    def strike_at_random(self, process, chance):
        """Sends signals to ranks of a running job. Returns the signals."""
        struck = []
        for _ in range(chance.randrange(1, 4)):
            time.sleep(chance.uniform(0.05, 2))
            ranks = self.living_ranks(process)
            if process.poll() is not None or len(ranks) < 2:
                break
            kind = chance.choice(STRIKES)
            try:
                os.kill(chance.choice(ranks), kind)
            except ProcessLookupError:
                continue
            struck.append(kind.name)
        return struck

    def checkpoints(self, run):
        """Returns the checkpoints, oldest first."""
        return sorted((self.folder / run / "checkpoints").glob("step-" + 8 * "[0-9]"))

    def damage_checkpoints(self, run, newest=None):
        """Damages the newest ones, or all."""
        for checkpoint in self.checkpoints(run)[-newest if newest else 0:]:
            os.truncate(checkpoint / "manifest.json", 100)

    def finish(self, process):
        try:
            return process.communicate(timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            self.fail("the job does not end")


@unittest.skipUnless(WITH_TORCH, "training needs libtorch")
class Healing(HealingTest):
    def test_struck_ranks_cost_no_sample(self):
        for config in ("static", "moving"):
            self.assert_done("train", f"{config}.toml", "--run-dir", f"{config}-expected", *self.settings)
        chance, tally, pauses, named = random.Random(3), collections.Counter(), [], []
        for number in range(ROUNDS):
            config, name = ("static", "moving")[number % 2], f"run{number}"
            with self.subTest(round=number):
                process = self.start("train", f"{config}.toml", "--run-dir", name, *self.settings)
                self.assertIsNotNone(ranks_of(process.pid, RANKS, lambda: process.poll() is None))
                struck = self.strike_at_random(process, chance)
                output, errors = self.finish(process)
                self.assertEqual(process.returncode, 0, f"struck by {struck}\n{output}\n{errors}")
                self.assert_same_training(name, f"{config}-expected")
                tally.update(struck)
                pauses += [float(pause) for pause in re.findall(r"ranks; pause ([0-9.e-]+) s", output)]
                named += re.findall(r"failed at (.*?): ", errors)
                # The logs are complete: a replay makes the same decisions.
                if config == "moving":
                    self.assert_done("replay", name)
        places = collections.Counter(re.sub(r"\d+", "N", place) for place in named)
        print(f"{ROUNDS} rounds; struck: {dict(tally)}; {len(pauses)} regroupings, the longest took "
              f"{max(pauses, default=0):.2f} s; places: {dict(places)}")

    def start_static(self, run):
        process = self.start("train", "static.toml", "--run-dir", run, *self.settings)
        ranks = ranks_of(process.pid, RANKS, lambda: process.poll() is None)
        self.wait_for_steps(run, 5, process)
        return process, ranks

    def test_any_rank_may_be_told_to_leave(self):
        self.assert_done("train", "static.toml", "--run-dir", "expected", *self.settings)
        for rank, tells in ((0, signal.SIGTERM), (3, signal.SIGUSR1)):
            run = f"without{rank}"
            process, ranks = self.start_static(run)
            os.kill(ranks[rank], tells)
            output, errors = self.finish(process)
            self.assertEqual((process.returncode, errors), (0, ""), output)
            self.assertRegex(output, r"step \d+: ranks have left; .* of 3 ranks; pause")
            self.assert_same_training(run, "expected")

    def assert_ends_with_checkpoint(self, process, run, code):
        output, errors = self.finish(process)
        self.assertEqual((process.returncode, errors), (code, ""), output)
        steps = len(self.records(run))
        self.assertTrue((self.folder / run / "checkpoints" / f"step-{steps:08}").exists())

    def test_a_full_disk_ends_the_run_with_one_message_and_no_step_is_lost(self):
        self.assert_done("train", "static.toml", "--run-dir", "expected", *self.settings)
        process = self.start("train", "static.toml", "--run-dir", "full", *self.settings)
        ranks = ranks_of(process.pid, RANKS, lambda: process.poll() is None)
        self.wait_for_checkpoint("full", 40)
        # Stands in for a full disk: there is room for the log, but not for a checkpoint.
        for pid in ranks.values():
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (200_000, 200_000))
        output, errors = self.finish(process)
        self.assertEqual(process.returncode, 2, output + errors)
        self.assertRegex(errors, r"\Acopus: error: [^\n]*cannot write [^\n]*File too large[^\n]*\n\Z")
        checkpoints = self.folder / "full" / "checkpoints"
        self.assertTrue((checkpoints / "step-00000040").exists())
        self.assert_done("train", "--resume", "--run-dir", "full")
        self.assert_same_training("full", "expected")

    def test_the_run_ends_with_a_checkpoint_where_all_are_told_to_leave(self):
        process, ranks = self.start_static("left")
        for pid in ranks.values():
            os.kill(pid, signal.SIGTERM)
        self.assert_ends_with_checkpoint(process, "left", 75)

    def test_the_last_rank_left_writes_a_checkpoint_where_it_was_asked_to_leave(self):
        self.write_run("pair.toml", steps=100 * STEPS, model=MODEL + "[parallel]\ndata_parallel = 2\n")
        process = self.start("train", "pair.toml", "--run-dir", "last", *self.settings)
        ranks = ranks_of(process.pid, 2, lambda: process.poll() is None)
        self.wait_for_steps("last", 5, process)
        # The launcher learns of both signals at the same time.
        os.kill(process.pid, signal.SIGSTOP)
        os.kill(ranks[1], signal.SIGTERM)
        self.wait_for_steps("last", len(self.records("last")) + 3, process)
        os.kill(ranks[0], signal.SIGKILL)
        os.kill(process.pid, signal.SIGCONT)
        output, errors = self.finish(process)
        self.assertEqual(process.returncode, 75, output + errors)
        self.assertIn("the job goes on with 1 rank", errors)
        self.assertTrue((self.folder / "last" / "checkpoints" / f"step-{len(self.records('last')):08}").exists())

    def test_a_run_that_is_told_to_end_does_so_with_a_checkpoint_where_all_ranks_are_killed_then(self):
        self.write_run("pair.toml", steps=STEPS, checkpoint_interval=0, model=MODEL + "[parallel]\ndata_parallel = 2\n")
        self.assert_done("train", "pair.toml", "--run-dir", "pair-expected", *self.settings)
        told = [f"step 45,@{rank}#1:TERM" for rank in range(2)]
        killed = [f"checkpoint after step@{rank}#1:KILL" for rank in range(2)]
        result = self.copus("train", "pair.toml", "--run-dir", "r", *self.settings,
                            env={**os.environ, "COPUS_FAULT": ";".join(told + killed)})
        self.assertEqual(result.returncode, 75, result.stdout + result.stderr)
        self.assertIn("killed by signal 9", result.stderr)
        self.assertTrue((self.folder / "r" / "checkpoints" / f"step-{len(self.records('r')):08}").exists())
        self.assert_done("train", "--resume", "--run-dir", "r")
        self.assert_same_training("r", "pair-expected")

    def test_a_signal_while_all_ranks_are_being_replaced_ends_the_run_with_a_checkpoint(self):
        self.write_run("pair.toml", steps=STEPS, checkpoint_interval=0, model=MODEL + "[parallel]\ndata_parallel = 2\n")
        self.assert_done("train", "pair.toml", "--run-dir", "pair-expected", *self.settings)
        process = self.start("train", "pair.toml", "--run-dir", "r", *self.settings)
        ranks = set(ranks_of(process.pid, 2, lambda: process.poll() is None).values())
        self.wait_for_steps("r", 55, process)
        self.kill_ranks(process)
        while process.poll() is None and not set(children(process.pid)) - ranks:
            time.sleep(0.005)
        process.send_signal(signal.SIGTERM)
        output, errors = self.finish(process)
        self.assertEqual(process.returncode, 75, output + errors)
        names = [path.name for path in (self.folder / "r" / "checkpoints").glob("step-*")]
        self.assertEqual(names, [f"step-{len(self.records('r')):08}"])
        self.assert_done("train", "--resume", "--run-dir", "r")
        self.assert_same_training("r", "pair-expected")

    def test_the_run_ends_with_a_checkpoint_where_any_rank_is_interrupted(self):
        process, ranks = self.start_static("interrupted")
        os.kill(ranks[2], signal.SIGINT)
        self.assert_ends_with_checkpoint(process, "interrupted", 130)

    def assert_trained_in_spite_of(self, faults, run, *settings, said="failed at"):
        """Runs the job with these faults to its end, and expects the samples and losses of an undisturbed one."""
        result = self.copus("train", "pair.toml", "--run-dir", run, *self.settings, *settings,
                                env={**os.environ, "COPUS_FAULT": ";".join(faults)})
        self.assertRegex(result.stderr, said)
        self.assertNotIn("after it again", result.stderr)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assert_same_training(run, "pair-expected")

    def test_a_newcomer_goes_on_from_what_the_last_holder_has_left(self):
        self.write_run("pair.toml", steps=STEPS, checkpoint_interval=0, model=MODEL + "[parallel]\ndata_parallel = 2\n")
        self.assert_done("train", "pair.toml", "--run-dir", "pair-expected", *self.settings)
        for number, place in enumerate(("who is there", "completing the last step", "preparing the move", "settling")):
            # The newcomer, process 2, holds no state when process 0, the last holder, ends.
            self.assert_trained_in_spite_of(["step 50,@1#1:KILL", f"regrouping: {place}@0#2:KILL"], f"pair{number}")
        # Then the newcomer itself is hit, and its successor continues all the same.
        twice = ["step 50,@1#1:KILL", "regrouping: settling@0#2:KILL", "regrouping: preparing the move@2#1:KILL"]
        self.assert_trained_in_spite_of(twice, "pair-twice")

    def test_a_rank_that_hangs_while_the_others_heal_is_found_by_its_lack_of_progress(self):
        self.write_run("pair.toml", steps=STEPS, checkpoint_interval=0, model=MODEL + "[parallel]\ndata_parallel = 3\n")
        settings = ["--set", "train.global_batch=12"]
        self.assert_done("train", "pair.toml", "--run-dir", "pair-expected", *self.settings, *settings)
        for number, hang in enumerate(("learning what has happened@1#2:HANG", "regrouping: preparing@1#1:HANG")):
            self.assert_trained_in_spite_of(["step 50,@2#1:KILL", hang], f"pair{number}", *settings,
                                            said="stalled: made no progress for 30 s")

    def test_where_all_ranks_are_killed_others_go_on_without_a_checkpoint(self):
        for config in ("static", "moving"):
            self.assert_done("train", f"{config}.toml", "--run-dir", f"{config}-expected", *self.settings)
            process = self.start("train", f"{config}.toml", "--run-dir", config, *self.settings, "--set",
                                 "checkpoint.interval=0")
            for strike in range(3):
                self.wait_for_steps(config, 10 + 40 * strike, process)
                self.kill_ranks(process)
            output, errors = self.finish(process)
            self.assertEqual(process.returncode, 0, output + errors)
            self.assert_same_training(config, f"{config}-expected")

    def test_where_all_ranks_are_killed_as_the_run_begins_it_begins_again(self):
        self.write_run("pair.toml", steps=STEPS, checkpoint_interval=0, model=MODEL + "[parallel]\ndata_parallel = 2\n")
        self.assert_done("train", "pair.toml", "--run-dir", "pair-expected", *self.settings)
        # Process 1 ends before it can continue alone, after it has heard of the other's end.
        after_loading = ["step 1,@1#1:KILL", "regrouping@1#1:KILL", "learning@1#1:KILL"]
        for place in ("setting up", "loading the first state", "having begun"):
            run = place.replace(" ", "-")
            others = after_loading if place == "having begun" else ["loading the first state@1#1:KILL"]
            faults = [f"{place}@0#1:KILL", *others]
            self.assert_trained_in_spite_of(faults, run, said="training had not begun, and the ranks are started again")

    def test_ranks_that_are_struck_in_any_way_before_the_run_begins_are_started_again(self):
        self.write_run("pair.toml", steps=STEPS, checkpoint_interval=0, model=MODEL + "[parallel]\ndata_parallel = 3\n")
        settings = ["--set", "train.global_batch=12"]
        self.assert_done("train", "pair.toml", "--run-dir", "pair-expected", *self.settings, *settings)
        # The launcher kills the stopped rank after the first one has failed.
        faults = ["setting up@0#1:KILL", "setting up@1#1:STOP", "loading the first state@2#1:KILL"]
        self.assert_trained_in_spite_of(faults, "r", *settings,
                                        said="training had not begun, and the ranks are started again")

    def test_a_newcomer_that_nobody_gave_the_plan_is_started_again_with_the_others(self):
        self.write_run("pair.toml", steps=STEPS, checkpoint_interval=0, model=MODEL + "[parallel]\ndata_parallel = 3\n")
        settings = ["--set", "train.global_batch=12"]
        self.assert_done("train", "pair.toml", "--run-dir", "pair-expected", *self.settings, *settings)
        # Process 3 joins while process 1 keeps process 2 waiting, and both end before process 3 has the plan.
        faults = ["setting up@0#1:KILL", "setting up@1#2:HANG", "learning@2#3:KILL"]
        process = self.start("train", "pair.toml", "--run-dir", "r", *self.settings, *settings,
                             env={**os.environ, "COPUS_FAULT": ";".join(faults)})
        ranks = ranks_of(process.pid, 3, lambda: process.poll() is None)
        deadline = time.monotonic() + TIMEOUT
        while not any(rank_of(pid, "COPUS_PROCESS") == 3 for pid in self.living_ranks(process)):
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)
        # Nothing reports when process 3 is set up. If it needs longer, the others end without it, with the same
        # outcome.
        time.sleep(3)
        os.kill(ranks[1], signal.SIGKILL)
        output, errors = self.finish(process)
        self.assertEqual(process.returncode, 0, output + errors)
        self.assertIn("training had not begun, and the ranks are started again", errors)
        self.assert_same_training("r", "pair-expected")

    def test_where_all_ranks_are_killed_before_there_is_a_run_directory_others_make_it(self):
        self.write_run("pair.toml", steps=STEPS, checkpoint_interval=0, model=MODEL + "[parallel]\ndata_parallel = 2\n")
        self.assert_done("train", "pair.toml", "--run-dir", "pair-expected", *self.settings)
        faults = ["opening the run directory@0#1:KILL", "step 1,@1#1:KILL", "regrouping@1#1:KILL", "learning@1#1:KILL"]
        self.assert_trained_in_spite_of(faults, "r")

    def test_what_ranks_have_loaded_is_found_where_they_end_as_soon_as_all_have(self):
        self.write_run("pair.toml", steps=STEPS, checkpoint_interval=0,
                       model=MODEL + "[parallel]\ndata_parallel = 5\nzero_stage = 3\n")
        settings = ["--set", "train.global_batch=20"]
        self.assert_done("train", "pair.toml", "--run-dir", "pair-expected", *self.settings, *settings)
        # Of the four processes that begin without process 0, two end. The others wait until newcomers have joined,
        # which read the state that the two held.
        faults = ["setting up@0#1:KILL", "having begun@1#1:KILL", "having begun@2#1:KILL", "setting up@3#3:STOP"]
        self.assert_trained_in_spite_of(faults, "r", *settings)

    def test_where_all_ranks_are_killed_the_run_stays_what_it_was_whatever_the_file_says_now(self):
        model = MODEL + "[parallel]\ndata_parallel = 2\n"
        self.write_run("pair.toml", steps=STEPS, checkpoint_interval=0, model=model)
        file = self.folder / "pair.toml"
        as_it_was = file.read_text()
        for precision, other in (("fp32", "bf16"), ("bf16", "fp32")):
            file.write_text(as_it_was.replace('precision = "fp32"', f'precision = "{precision}"'))
            self.assert_done("train", "pair.toml", "--run-dir", f"{precision}-expected", *self.settings)
            process = self.start("train", "pair.toml", "--run-dir", precision, *self.settings)
            self.wait_for_steps(precision, 5, process)
            file.write_text(as_it_was.replace('precision = "fp32"', f'precision = "{other}"')
                            .replace("hidden_size = 64", "hidden_size = 128").replace("lr = ", "lr = 1"))
            self.kill_ranks(process)
            output, errors = self.finish(process)
            self.assertEqual(process.returncode, 0, output + errors)
            self.assert_same_training(precision, f"{precision}-expected")

    def test_where_all_ranks_are_killed_others_go_on_from_memory_though_all_checkpoints_are_damaged(self):
        self.write_run("pair.toml", steps=STEPS, checkpoint_interval=20, model=MODEL + "[parallel]\ndata_parallel = 2\n")
        self.assert_done("train", "pair.toml", "--run-dir", "pair-expected", *self.settings)
        process = self.start("train", "pair.toml", "--run-dir", "r", *self.settings)
        ranks = ranks_of(process.pid, 2, lambda: process.poll() is None)
        self.wait_for_checkpoint("r", 40)
        for pid in ranks.values():
            os.kill(pid, signal.SIGSTOP)
        self.damage_checkpoints("r")
        self.kill_ranks(process)
        output, errors = self.finish(process)
        self.assertEqual(process.returncode, 0, output + errors)
        self.assertNotIn("after it again", errors)
        self.assert_same_training("r", "pair-expected")

    def test_ranks_that_are_killed_again_and_again_without_a_step_end_the_job(self):
        self.write_run("pair.toml", steps=STEPS, checkpoint_interval=0, model=MODEL + "[parallel]\ndata_parallel = 2\n")
        faults = [f"step 50,@{number}#1:KILL" for number in range(2)]
        faults += [f"regrouping: who is there@{number}#1:KILL" for number in range(2, 8)]
        result = self.copus("train", "pair.toml", "--run-dir", "r", *self.settings, "--set", "heal.restarts=2",
                            env={**os.environ, "COPUS_FAULT": ";".join(faults)})
        self.assertEqual(result.returncode, 1, result.stdout + result.stderr)
        self.assertIn("the job is ended", result.stderr)

    def test_rank_0_may_be_lost_in_the_step_after_a_checkpoint(self):
        self.write_run("pair.toml", steps=STEPS, checkpoint_interval=1, model=MODEL + "[parallel]\ndata_parallel = 2\n")
        self.assert_done("train", "pair.toml", "--run-dir", "pair-expected", *self.settings)
        for step in (2, 20, 40):
            self.assert_trained_in_spite_of([f"step {step}, adding up gradients@0#1:KILL"], f"pair{step}",
                                            said="the job goes on with 1 rank")

    def test_logs_curves_and_progress_lines_have_every_step_once_whichever_process_is_rank_0(self):
        self.write_run("pair.toml", steps=STEPS, checkpoint_interval=0, model=MODEL + "[parallel]\ndata_parallel = 2\n")
        self.assert_done("train", "pair.toml", "--run-dir", "pair-expected", *self.settings)
        # Each new rank 0 writes the latest step again. The first two of these steps have a progress line of their own,
        # and the third is four steps after such a line.
        faults = [f"step {step}, adding up gradients@{number}#1:KILL" for number, step in enumerate((22, 85, 138))]
        # Ranks regroup before they have traced 100 steps, so the timeline is begun again with every replacement.
        settings = [*self.settings, "--set", "log.interval=7", "--set", "log.tensorboard=true", "--trace", "100"]
        result = self.copus("train", "pair.toml", "--run-dir", "r", *settings,
                            env={**os.environ, "COPUS_FAULT": ";".join(faults)})
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertEqual(result.stderr.count("the job goes on"), 3, result.stderr)
        self.assert_same_training("r", "pair-expected")
        # The last rank 0 is a replacement.
        self.assertTrue((self.folder / "r" / "timeline.json").exists())
        self.assertTrue((self.folder / "r" / "report.html").exists())
        self.assertIn("copus generate --checkpoint r\n", result.stdout)
        shown = [int(step) for step in re.findall(rf"(?m)^step (\d+)/{STEPS} ", result.stdout)]
        evaluated = [record["step"] for record in self.records("r") if record["held_out_loss"] is not None]
        self.assertEqual(shown, sorted({*range(7, STEPS + 1, 7), *evaluated}), result.stdout)
        try:
            from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        except ImportError:
            return
        curves = EventAccumulator(str(self.folder / "r" / "tensorboard"), size_guidance={"scalars": 0}).Reload()
        self.assertEqual([event.step for event in curves.Scalars("train/loss")], list(range(1, STEPS + 1)))
        self.assertEqual([event.step for event in curves.Scalars("held_out/loss")], evaluated)

    def test_a_paused_run_stays_paused_when_rank_0_is_lost(self):
        self.write_run("pair.toml", steps=100 * STEPS, model=MODEL + "[parallel]\ndata_parallel = 2\n")
        process = self.start("train", "pair.toml", "--run-dir", "r", *self.settings)
        ranks = ranks_of(process.pid, 2, lambda: process.poll() is None)
        self.wait_for_steps("r", 5, process)
        self.assert_done("ctl", "r", "pause")
        os.kill(ranks[0], signal.SIGKILL)
        deadline = time.monotonic() + TIMEOUT
        while '"event":"ranks changed"' not in (self.folder / "r" / "decisions.jsonl").read_text():
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)
        self.assertIn(", paused", self.assert_done("ctl", "r", "status").stdout)
        self.assert_done("ctl", "r", "resume")
        self.wait_for_steps("r", len(self.records("r")) + 5, process)
        process.send_signal(signal.SIGINT)
        output, errors = self.finish(process)
        self.assertEqual(process.returncode, 130, output + errors)
        self.assert_done("replay", "r")

    def test_whoever_leads_after_rank_0_was_lost_tells_the_user_what_a_signal_does(self):
        process, ranks = self.start_static("led")
        os.kill(ranks[0], signal.SIGKILL)
        self.wait_for_steps("led", len(self.records("led")) + 20, process)
        process.send_signal(signal.SIGINT)
        output, _ = self.finish(process)
        self.assertEqual(process.returncode, 130, output)
        self.assertEqual(output.count("Ctrl-C: stops after this step; a second one ends it at once"), 1, output)

    def test_the_run_ends_with_a_checkpoint_where_it_is_told_to_as_it_begins(self):
        for run, end, code, rank in [("terminated", signal.SIGTERM, 75, None), ("interrupted", signal.SIGINT, 130, 2)]:
            process = self.start("train", "static.toml", "--run-dir", run, *self.settings)
            ranks = ranks_of(process.pid, RANKS, lambda: process.poll() is None)
            self.wait_for_place(b"setting up", ranks[0])
            os.kill(process.pid if rank is None else ranks[rank], end)
            self.assert_ends_with_checkpoint(process, run, code)

    def wait_for_place(self, place, rank):
        """Waits until any rank has come to this place, as seen in the memory of `rank`."""
        deadline = time.monotonic() + TIMEOUT
        while True:
            places = Places(rank)
            has_come = place in places.read()
            places.close()
            if has_come:
                return
            self.assertLess(time.monotonic(), deadline, f"no rank comes to {place}")

    def test_a_run_directory_that_goes_away_with_rank_0_is_made_again(self):
        process, ranks = self.start_static("gone")
        process.send_signal(signal.SIGSTOP)  # so that no process takes over in between
        os.kill(ranks[0], signal.SIGKILL)
        shutil.rmtree(self.folder / "gone")
        process.send_signal(signal.SIGCONT)
        output, errors = self.finish(process)
        self.assertEqual(process.returncode, 0, output + errors)
        told = r"the run directory gone was deleted or moved before rank 0 was lost: it is made again.*\nstep (\d+): checkpoint;"
        self.assertEqual(len(re.findall("the run directory gone was deleted", output)), 1, output)
        self.assertRegex(output, re.compile(told, re.DOTALL))
        steps = [record["step"] for record in self.records("gone")]
        self.assertEqual(steps, list(range(steps[0], STEPS + 1)))
        self.assert_done("train", "--resume", "--run-dir", "gone")

    def test_a_node_leaves_on_the_virtual_clock(self):
        (self.folder / "nodes.toml").write_text(
            "ranks_per_node = 2\nteraflops_per_rank = 0.02\n"
            "within_node = { latency_microseconds = 2.0, gigabytes_per_second = 200.0 }\n"
            "between_nodes = { latency_microseconds = 10.0, gigabytes_per_second = 25.0 }\n")
        cluster = ["--set", "cluster.config=nodes.toml", "--set", "cluster.clock=virtual"]
        self.write_run("nodes_run.toml", steps=STEPS, checkpoint_interval=0, model=MODEL)
        self.assert_done("train", "nodes_run.toml", "--run-dir", "expected", *cluster, *self.settings, "--set",
                         "parallel.data_parallel=8")
        process = self.start("train", "nodes_run.toml", "--run-dir", "left", *cluster, *self.settings, "--set",
                             "parallel.data_parallel=8")
        ranks = ranks_of(process.pid, 8, lambda: process.poll() is None)
        self.wait_for_steps("left", 5, process)
        for rank in (2, 3):
            os.kill(ranks[rank], signal.SIGTERM)
        output, errors = self.finish(process)
        self.assertEqual((process.returncode, errors), (0, ""), output)
        self.assertRegex(output, r"step \d+: ranks have left; .* of 6 ranks; pause")
        self.assert_same_training("left", "expected")
        # The step time follows from rates and links: the same as in the other run with eight ranks, and longer with
        # fewer.
        records, others = self.records("left"), self.records("expected")
        self.assertAlmostEqual(records[3]["step_seconds"] / others[3]["step_seconds"], 1, delta=1e-6)
        self.assertGreater(records[-1]["step_seconds"], 1.1 * others[-1]["step_seconds"])


@unittest.skipUnless(WITH_TORCH, "training needs libtorch")
class Machines(HealingTest):
    """Jobs whose ranks are started by one process per machine. All "machines" are this machine."""

    def setUp(self):
        super().setUp()
        self.settings += ["--set", "train.global_batch=12"]
        self.write_run("copies.toml", steps=STEPS, checkpoint_interval=40,
                       model=MODEL + "[parallel]\ndata_parallel = 4\n")
        self.write_run("stages.toml", steps=STEPS, checkpoint_interval=40,
                       model=MODEL + "[parallel]\npipeline_parallel = 4\n")

    def assert_trained_as_unharmed(self, run):
        self.assert_done("train", "copies.toml", "--run-dir", "expected", *self.settings)
        self.assert_same_training(run, "expected")

    def start_machines(self, configuration, run, *settings, environment=()):
        place = {"WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1",
                 "MASTER_PORT": free_port()}
        machines = [self.start("train", configuration, "--run-dir", run, *self.settings, *settings,
                               env={**os.environ, **place, **dict(environment), "RANK": str(machine)})
                    for machine in (0, 1)]
        for machine in machines:
            self.addCleanup(machine.communicate)
            self.addCleanup(machine.kill)
        return machines

    def test_torchrun_starts_one_process(self):
        process = subprocess.Popen([TORCHRUN, "--no-python", "--nproc-per-node", "1", "--master-port", free_port(), COPUS,
                                    "train", "copies.toml", "--run-dir", "r", *self.settings],
                                   cwd=self.folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.wait_for_steps("r", 5, process)
        launcher, = [pid for pid in children(process.pid) if not is_gone(pid) and rank_of(pid) is None]
        os.kill(ranks_of(launcher, RANKS, lambda: process.poll() is None)[2], signal.SIGKILL)
        output, errors = self.finish(process)
        self.assertEqual(process.returncode, 0, output + errors)
        self.assertRegex(errors, r"copus: rank 2 \(pid \d+\) failed at step \d+, .*; the job goes on with 3 ranks\n")
        self.assert_trained_as_unharmed("r")

    def test_the_run_ends_with_a_checkpoint_where_torchrun_is_killed(self):
        process = subprocess.Popen([TORCHRUN, "--no-python", "--nproc-per-node", "1", "--master-port", free_port(), COPUS,
                                    "train", "copies.toml", "--run-dir", "r", *self.settings],
                                   cwd=self.folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.wait_for_steps("r", 5, process)
        process.kill()
        output, errors = self.finish(process)  # until the last process has closed them
        self.assertEqual(errors.count("copus:"), 1, errors)
        self.assertIn(f"(pid {process.pid}) is gone; the job is told to end", errors)
        self.assertIn("copus train --resume --run-dir r", output)
        steps = len(self.records("r"))
        self.assertTrue((self.folder / "r" / "checkpoints" / f"step-{steps:08}").exists())

    def test_a_rank_and_then_a_machine_are_lost(self):
        # With three ranks left, plain ZeRO would be the most similar layout, but then no machine has a complete copy.
        first, second = self.start_machines("copies.toml", "r", "--set", "heal.machines=true", "--set",
                                            "parallel.zero_stage=1", "--set", "parallel.zero_replicas=2", "--set",
                                            "adapt.zero_stages=[0,1]")
        self.wait_for_steps("r", 5, first)
        os.kill(self.living_ranks(second)[-1], signal.SIGKILL)
        self.wait_for_steps("r", len(self.records("r")) + 10, first)
        ranks = self.living_ranks(second)
        second.kill()
        output, errors = self.finish(first)
        self.assertEqual(first.returncode, 0, output + errors)
        self.assertRegex(errors, r"; the job goes on with 3 ranks\n")
        self.assertRegex(output, r"killed by signal 9 \(Killed\); not in [^;]*zero=1 on 3 ranks, [^;]*; "
                                 r"d=3,t=1,p=1,B=12,b=1 on 3 of 3 ranks")
        self.assertRegex(errors, r"its machine 1 \(host .*\) is gone: .*; the job goes on with 2 ranks\n")
        self.assertTrue(all(is_gone(pid) for pid in ranks))
        self.assert_trained_as_unharmed("r")

    def test_what_a_machine_alone_holds_is_moved_before_it_leaves(self):
        first, second = self.start_machines("stages.toml", "r")
        self.wait_for_steps("r", 5, first)
        second.send_signal(signal.SIGTERM)
        output, errors = self.finish(first)
        self.assertEqual((first.returncode, errors), (0, ""), output)
        self.assertEqual(len(re.findall("ranks have left; .* on 2 of 2 ranks", output)), 1, output)
        self.assertEqual(second.wait(timeout=TIMEOUT), 0)
        self.assert_trained_as_unharmed("r")

    def test_what_a_rank_alone_holds_is_moved_before_it_leaves_whoever_has_left_before(self):
        self.settings += ["--set", "train.global_batch=8"]  # not divisible by three data-parallel ranks
        first, second = self.start_machines("stages.toml", "r")
        self.wait_for_steps("r", 5, first)
        for pid in reversed(sorted(self.living_ranks(second), key=rank_of)):
            os.kill(pid, signal.SIGTERM)
            while not is_gone(pid):
                self.assertIsNone(first.poll())
                time.sleep(0.01)
        output, errors = self.finish(first)
        self.assertEqual((first.returncode, errors), (0, ""), output)
        self.assertRegex(output, r"ranks have left; d=1,t=1,p=3,.* on 3 of 3 ranks")
        self.assertRegex(output, r"ranks have left; .* on 2 of 2 ranks")
        self.assert_trained_as_unharmed("r")

    def test_the_run_ends_with_a_checkpoint_where_those_that_stay_cannot_take_over(self):
        # Four ranks have enough memory for the model; two do not.
        model = MODEL.replace("hidden_size = 64", "hidden_size = 256").replace("_size = 128", "_size = 512")
        cluster = CLUSTER.replace("{ matmul", "{ memory_gigabytes = 0.012, matmul")
        self.write_run("tight.toml", steps=20, model=model + "[parallel]\npipeline_parallel = 4\n" + cluster)
        first, second = self.start_machines("tight.toml", "r")
        self.wait_for_steps("r", 3, first)
        second.send_signal(signal.SIGTERM)
        output, errors = self.finish(first)
        self.assertEqual(first.returncode, 75, output + errors)
        self.assertRegex(errors, r"\Acopus: ranks leave, and those that stay cannot take over what they hold, so the job "
                                 r"ends with a checkpoint: no layout of the 2 ranks [^\n]*\n\Z")
        self.assertEqual(second.wait(timeout=TIMEOUT), 75)
        self.assertTrue((self.folder / "r" / "checkpoints" / f"step-{len(self.records('r')):08}").exists())
        self.assert_done("train", "--resume", "--run-dir", "r")
        self.assertEqual([record["step"] for record in self.records("r")], list(range(1, 21)))

    def test_where_all_ranks_of_a_machine_are_killed_others_there_go_on(self):
        first, second = self.start_machines("stages.toml", "r", "--set", "checkpoint.interval=0")
        for machine in (second, first):
            self.wait_for_steps("r", len(self.records("r")) + 10 if machine is first else 5, first)
            self.kill_ranks(machine)
        output, errors = self.finish(first)
        self.assertEqual(first.returncode, 0, output + errors)
        self.assertNotIn("after it again", errors)
        self.assert_trained_as_unharmed("r")

    def test_ranks_are_chosen_such_that_a_machine_may_be_lost_after_a_rank(self):
        # Three ranks cannot share the batch, and the first two of them are on one machine.
        self.settings += ["--set", "train.global_batch=8"]
        first, second = self.start_machines("copies.toml", "r", "--set", "heal.machines=true", "--set",
                                            "heal.replace=false")
        self.wait_for_steps("r", 5, first)
        os.kill(self.living_ranks(second)[-1], signal.SIGKILL)
        self.wait_for_steps("r", len(self.records("r")) + 10, first)
        second.kill()
        output, errors = self.finish(first)
        self.assertEqual(first.returncode, 0, output + errors)
        self.assertRegex(output, r"\(Killed\); not in d=1,t=1,p=3,B=8,b=\d on 3 ranks, which would not survive the loss of a "
                                 r"machine \(heal.machines\); d=2,t=1,p=1,B=8,b=1 on 2 of 3 ranks")
        self.assertRegex(output, r"no layout of these ranks survives the loss of a machine \(heal.machines\); .* of 2 ranks")
        self.assert_trained_as_unharmed("r")

    def test_a_layout_may_be_safe_in_another_order_of_its_ranks(self):
        # In the order of the ranks, both copies of a stage are neighbours and therefore on the same machine.
        first, second = self.start_machines("copies.toml", "r", "--set", "heal.machines=true", "--set",
                                            "parallel.data_parallel=2", "--set", "parallel.pipeline_parallel=2")
        self.wait_for_steps("r", 5, first)
        second.kill()
        output, errors = self.finish(first)
        self.assertEqual(first.returncode, 0, output + errors)
        self.assert_trained_as_unharmed("r")

    def test_what_only_the_lost_machine_had_is_named_and_trained_again_from_the_newest_checkpoint(self):
        first, second = self.start_machines("stages.toml", "r")
        self.wait_for_checkpoint("r", 40)
        second.kill()
        output, errors = self.finish(first)
        self.assertEqual(first.returncode, 0, output + errors)
        self.assertRegex(errors, r"copus: the training state of layer .* was on no other machine than the one that is lost")
        self.assertRegex(errors, r"; the job goes on from r/checkpoints/step-\d{8} and trains \d+ steps? after it again")
        self.assert_trained_as_unharmed("r")

    def test_where_the_newest_checkpoint_is_damaged_lost_state_is_trained_again_from_an_older_one(self):
        first, second = self.start_machines("stages.toml", "r", "--set", "checkpoint.interval=20")
        self.wait_for_checkpoint("r", 40)
        self.damage_checkpoints("r", newest=1)
        second.kill()
        output, errors = self.finish(first)
        self.assertEqual(first.returncode, 0, output + errors)
        self.assertRegex(errors, r"; the job goes on from r/checkpoints/step-00000020 and trains \d+ steps? after it again")
        self.assertIn("step-00000040 is damaged", output)
        self.assert_trained_as_unharmed("r")

    def test_where_all_checkpoints_are_damaged_and_state_is_lost_one_message_ends_the_job_and_all_stays(self):
        first, second = self.start_machines("stages.toml", "r", "--set", "checkpoint.interval=20")
        self.wait_for_checkpoint("r", 40)
        self.damage_checkpoints("r")
        before = self.checkpoints("r")
        second.kill()
        output, errors = self.finish(first)
        self.assertEqual(first.returncode, 2, output + errors)
        self.assertEqual(errors.count("copus: error:"), 1, errors)
        self.assertRegex(errors, r"copus: error: [^\n]*step-00000040 is damaged: [^\n]*; the run has no other checkpoint, and "
                                 r"it is not trained again from its beginning")
        self.assertEqual(self.checkpoints("r"), before)
        steps = [record["step"] for record in self.records("r")]
        self.assertEqual(steps, list(range(1, len(steps) + 1)))
        self.assertGreaterEqual(len(steps), 40)

    def test_a_run_that_has_begun_and_has_no_checkpoint_does_not_begin_anew_by_itself(self):
        first, second = self.start_machines("stages.toml", "r", "--set", "checkpoint.interval=0")
        self.wait_for_steps("r", 5, first)
        second.kill()
        output, errors = self.finish(first)
        self.assertEqual(first.returncode, 2, output + errors)
        self.assertIn("the run has no checkpoint yet", errors)
        steps = [record["step"] for record in self.records("r")]
        self.assertEqual(steps, list(range(1, len(steps) + 1)))

    def test_a_run_without_a_recorded_step_begins_again_where_its_state_is_lost(self):
        strike = {"COPUS_FAULT": ";".join(f"step 1,@{process}#1:KILL" for process in (2, 3))}
        first, second = self.start_machines("stages.toml", "r", "--set", "heal.restarts=0", "--set", "heal.replace=false",
                                            environment=strike)
        output, errors = self.finish(first)
        self.assertEqual(first.returncode, 0, output + errors)
        self.assertIn("no step was recorded yet, and the job begins again", errors)
        self.assert_trained_as_unharmed("r")

    def test_a_layout_that_no_machine_outlives_is_refused_where_that_is_asked_for(self):
        first, second = self.start_machines("stages.toml", "r", "--set", "heal.machines=true")
        output, errors = self.finish(first)
        self.assertEqual((first.returncode, errors.count("copus: error:")), (2, 1), output + errors)
        self.assertIn("heal.machines = true, and of the layout d=1,t=1,p=4 some training state is on one machine", errors)
        self.assertEqual(second.wait(timeout=TIMEOUT), 2)
        self.assertFalse((self.folder / "r").exists())


# A run that measures its critical batch by branches, with a policy that may choose the batch.
CALIBRATING = """
[adapt]
policy = "copus"
global_batches = [4, 8, 16]
explore_budget = 0.9
[noise_scale]
window_samples = 512
"""


@unittest.skipUnless(WITH_TORCH, "training needs libtorch")
class Calibrations(ProgramTest):
    def test_a_rank_lost_in_a_branch_ends_the_calibration_and_not_the_run(self):
        model = MODEL.replace("hidden_size = 64", "hidden_size = 16").replace("num_hidden_layers = 4", "num_hidden_layers = 1")
        self.write_run("run.toml", steps=6000, model=model + CLUSTER + "[parallel]\ndata_parallel = 4\n" + CALIBRATING)
        process = self.start("train", "run.toml", "--run-dir", "r", "--set", "train.global_batch=4", "--set",
                             "train.micro_batch=1", "--set", "evaluate.interval=0", "--set", "data.held_out_fraction=0.02")
        lost = False
        for line in process.stdout:
            if "branches to measure" in line and not lost:
                ranks = ranks_of(process.pid, RANKS, lambda: process.poll() is None)
                os.kill(ranks[RANKS - 1], signal.SIGKILL)
                lost = True
        self.assertEqual(process.wait(timeout=TIMEOUT), 0, process.stderr.read())
        events = [json.loads(line) for line in (self.folder / "r" / "decisions.jsonl").read_text().splitlines()]
        calibrations = [event for event in events if event["event"] == "calibration"]
        self.assertEqual(calibrations[0]["reason"], "a rank was lost")
        self.assertGreater(len(calibrations), 1, "the next one is made")
        self.assertEqual([step["step"] for step in self.steps("r")], list(range(1, len(self.steps("r")) + 1)))
        self.assert_done("replay", "r")

    def steps(self, run):
        return [json.loads(line) for line in (self.folder / run / "run.jsonl").read_text().splitlines()]


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
