"""Tests runs on the modelled clock as processes: one small model trains, while time, layouts and decisions are those of
a large job on a cluster that is only described.

Usage: modelled_clock_test.py PATH_TO_COPUS [unittest options].
"""

import itertools
import json
import os
import re
import random
import signal
import time
import unittest

from free_port import free_port
from program_test_support import MODELLED_CLOCK, TIMEOUT, WITH_TORCH, ProgramTest, batch_of

KILL_ROUNDS = int(os.environ.get("COPUS_KILL_ROUNDS", "2"))
CALIBRATED_STEPS = 4000

JOB = """
[parallel]
data_parallel = 8
tensor_parallel = 2
pipeline_parallel = 4
""" + MODELLED_CLOCK
# Few candidates, so that a controller starts quickly.
ADAPT = """
[adapt]
policy = "{policy}"
global_batches = [8, 16, 32]
micro_batches = [1, 2]
interval_samples = 32
dwell_samples = 64
"""


class ModelledClockTest(ProgramTest):
    def write_job(self, name="run.toml", policy="copus", cluster=JOB, **run):
        self.write_run(name, more=cluster + ADAPT.format(policy=policy), **run)
        text = (self.folder / name).read_text().replace("micro_batch = 4", "micro_batch = 1")
        self.write(name, text)

    def lines(self, run, name):
        return [json.loads(line) for line in (self.folder / run / name).read_text().splitlines()]


class Mistakes(ModelledClockTest):
    @unittest.skipUnless(WITH_TORCH, "needs libtorch")
    def test_what_the_clock_is_of(self):
        self.write_job(cluster=JOB.replace('clock = "modelled"\n', ""))
        self.assert_refused("train", "run.toml", "--run-dir", "r", says=["stands_for", 'cluster.clock = "modelled"'])
        self.write_job(cluster=JOB.replace('config = "h100-sxm"\n', ""))
        self.assert_refused("train", "run.toml", "--run-dir", "r", says=["none is described"])
        links = "{ latency_microseconds = 2.0, gigabytes_per_second = 8.0 }"
        self.write_job(cluster=JOB.replace(
            'config = "h100-sxm"', f"ranks_per_node = 4\nwithin_node = {links}\nbetween_nodes = {links}"))
        self.assert_refused("train", "run.toml", "--run-dir", "r", says=["does not say how fast"])
        self.write_job(cluster=JOB.replace("llama-3.1-8b", "llama-3.1-405b"))
        self.assert_refused("train", "run.toml", "--run-dir", "r", says=["cannot begin in d=8,t=2,p=4", "needs", "GiB"])
        self.write_job()
        self.assert_refused("profile", "--config", "run.toml", says=["nothing to measure"])
        self.write_job(cluster=JOB.replace("tensor_parallel = 2", "tensor_parallel = 64"))
        self.assert_refused("train", "run.toml", "--run-dir", "r", says=["tensor_parallel"])

    @unittest.skipUnless(WITH_TORCH, "needs libtorch")
    def test_several_processes(self):
        self.write_job()
        port = free_port()
        ranks = [self.start("train", "run.toml", "--run-dir", "r",
                            env=os.environ | {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank),
                                              "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
                                              "MASTER_PORT": port}) for rank in range(2)]
        errors = "".join(rank.communicate(timeout=TIMEOUT)[1] for rank in ranks)
        self.assertEqual([rank.returncode for rank in ranks], [2, 2], errors)
        self.assertEqual(errors.count("copus: error:"), 1, errors)
        self.assertIn("trains in one process, whose clock is that of 64 ranks, and the job was started with 2", errors)
        self.assertFalse((self.folder / "r").exists())


@unittest.skipUnless(WITH_TORCH, "needs libtorch")
class Runs(ModelledClockTest):
    def test_a_killed_run_goes_on_bitwise_and_its_decisions_replay(self):
        self.write_job("whole.toml", steps=60)
        output = self.assert_done("train", "whole.toml", "--run-dir", "whole").stdout
        self.assertIn("stands for llama, 8.0 B parameters in bf16", output)
        self.assertIn("on 64 ranks", output)
        switches = [event for event in self.lines("whole", "decisions.jsonl") if event["event"] == "switch"]
        self.assertTrue(switches, "the test is of no use without a switch")
        self.assert_done("replay", "whole")

        self.write_job("half.toml", steps=60, checkpoint_interval=7)
        process = self.start("train", "half.toml", "--run-dir", "r")
        self.wait_for_steps("r", 24, process)
        process.kill()
        process.communicate()
        output = self.assert_done("train", "--resume", "--run-dir", "r").stdout
        self.assertIn("resumed", output)
        self.assertNotIn("afresh", output)
        # The pause before the checkpoint is logged with the step after it, so a resumed run lacks it.
        of_steps = lambda run: [{**record, "switch_seconds": None} for record in self.lines(run, "run.jsonl")]
        self.assertEqual(of_steps("r"), of_steps("whole"), "times and decisions included")
        events = lambda run: [event for event in self.lines(run, "decisions.jsonl") if event["event"] != "resumed"]
        self.assertEqual(events("r"), events("whole"))
        self.assert_done("replay", "r")

    # With COPUS_KILL_ROUNDS=20 it is killed 20 times.
    def test_a_run_that_is_killed_while_it_calibrates_itself_ends_as_one_that_is_not(self):
        def write(name):
            self.write_job(name, steps=CALIBRATED_STEPS, checkpoint_interval=41)
            text = (self.folder / name).read_text()
            self.write(name, text.replace("[adapt]", "[adapt]\nexplore_budget = 0.99"))

        def calibrations(run):
            return [event for event in self.lines(run, "decisions.jsonl") if event["event"] == "calibration"]

        write("whole.toml")
        output = self.assert_done("train", "whole.toml", "--run-dir", "whole").stdout
        self.assertEqual(len(calibrations("whole")), 3, output)
        self.assertIn("training stood still for", output)
        self.assert_done("replay", "whole")
        steps = self.lines("whole", "run.jsonl")
        self.assertEqual([step["consumed_samples"] for step in steps],
                         list(itertools.accumulate(step["global_batch"] for step in steps)), "no sample is skipped")

        write("killed.toml")
        chance = random.Random(5)
        steps_of = [event["step"] for event in calibrations("whole")]
        arguments = ["train", "killed.toml", "--run-dir", "r"]
        within = 0
        for number in range(KILL_ROUNDS):
            at = steps_of[number * len(steps_of) // KILL_ROUNDS]
            process = self.start(*arguments)
            said = []
            for line in process.stdout:
                said.append(line)
                if f"step {at}: trains" in line:
                    break
            else:
                self.fail(f"step {at} was not a calibration: {''.join(said)}{process.stderr.read()}")
            time.sleep(chance.uniform(0, 0.3))
            process.kill()
            process.communicate()
            within += at not in [event["step"] for event in calibrations("r")]
            arguments = ["train", "--resume", "--run-dir", "r"]
        self.assertGreater(within, KILL_ROUNDS // 2 - 1, "kills were not within calibrations")
        self.assert_done(*arguments)
        of_steps = lambda run: [{**record, "switch_seconds": None} for record in self.lines(run, "run.jsonl")]
        self.assertEqual(of_steps("r"), of_steps("whole"), "times and decisions included")
        events = lambda run: [event for event in self.lines(run, "decisions.jsonl") if event["event"] != "resumed"]
        self.assertEqual(events("r"), events("whole"))
        self.assert_done("replay", "r")

    def test_a_run_and_its_forecast_begin_in_the_layout_for_the_documents_of_the_data(self):
        cluster = JOB.replace("tensor_parallel = 2", "tensor_parallel = 8").replace("pipeline_parallel = 4\n", "")
        self.write_run("run.toml", steps=2, more=cluster.replace("8192", "4096") + '[adapt]\npolicy = "static-best"\n')
        self.write("documents.txt", ("x" * 39 + "|") * 400)

        def layout(*arguments):
            output = self.assert_done("train", "run.toml", "--set", "train.micro_batch=1", "--set",
                                      "data.train=documents.txt", "--set", "data.document_separator=|", "--set",
                                      "data.mask_across_documents=true", *arguments).stdout
            return re.search(r"runs in    (\S+)", output)[1]

        whole = layout("--dry-run", "--set", "data.document_length=4096")
        short = layout("--dry-run", "--set", "data.document_length=40")
        self.assertNotEqual(whole, short)
        self.assertEqual(layout("--dry-run"), short)
        self.assertEqual(layout("--run-dir", "r"), short)

    def test_schedules_of_batches_replay_and_repeat(self):
        for policy, setting, batches in [("seesaw", "", [16, 32]), ("late-switch", "late_switch_batch = 32\n", [32])]:
            config = f"{policy}.toml"
            self.write_job(config, policy=policy, steps=60)
            self.write(config, (self.folder / config).read_text() + setting)
            self.assert_done("train", config, "--run-dir", policy)
            switches = [event for event in self.lines(policy, "decisions.jsonl") if event["event"] == "switch"]
            self.assertEqual([batch_of(switch["to"]) for switch in switches], batches)
            self.assertTrue(all(isinstance(record["phase"], str) and isinstance(record["clipped"], bool)
                                for record in self.lines(policy, "run.jsonl")))
            self.assert_done("replay", policy)
            self.assert_done("train", config, "--run-dir", f"{policy}-again", "--set", "adapt.policy=script",
                             "--set", f"adapt.file={policy}/decisions.jsonl")
            self.assertEqual(self.losses(f"{policy}-again"), self.losses(policy))

    def test_a_schedule_by_hand_is_carried_out_exactly(self):
        self.write_job(policy="steps", steps=30)
        schedule = "0:8 40:32 136:8 152:24"
        self.assert_done("train", "run.toml", "--run-dir", "done", "--set", f"adapt.schedule={schedule}")
        records = self.lines("done", "run.jsonl")
        self.assertEqual([record["global_batch"] for record in records], [8] * 5 + [32] * 3 + [8] * 2 + [24] * 4)
        self.assertEqual({(record["strategy"], record["micro_batch"]) for record in records}, {("d=8,t=2,p=4", 1)})
        self.assert_done("replay", "done")
        self.assert_refused("train", "run.toml", "--run-dir", "r", "--set", "adapt.schedule=0:8 40:12",
                            says=["adapt.schedule has batch 12", "data_parallel 8"])

    def test_a_person_moves_the_job(self):
        self.write_job(policy="static", steps=100000)
        process = self.start("train", "run.toml", "--run-dir", "r")
        self.addCleanup(process.kill)
        self.wait_for_steps("r", 3, process)
        told = self.assert_done("ctl", "r", "force", "d=16,t=4,p=1,B=16").stdout
        self.assertIn("d=8,t=2,p=4,B=8 -> d=16,t=4,p=1,B=16", told)
        self.assertIn("; pause ", told)
        self.assert_refused("ctl", "r", "force", "d=32,t=1,p=1,B=32", says=["the job trains on 64"], leaves_run_dir=True)
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=TIMEOUT)
        self.assertEqual(process.returncode, 75, output + errors)
        records = self.lines("r", "run.jsonl")
        self.assertEqual(records[-1]["strategy"], "d=16,t=4,p=1")
        self.assertEqual(records[-1]["global_batch"], 16)
        self.assertEqual(len({record["step_seconds"] for record in records}), 2, "one time for each configuration")


if __name__ == "__main__":
    unittest.main(argv=[__file__] + __import__("sys").argv[2:])
