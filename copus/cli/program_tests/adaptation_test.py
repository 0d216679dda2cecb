"""Tests runs that adapt, as processes: batches and layouts that change during training, scripts, advice, resuming, and
`copus ctl`. They use the virtual clock, so step times, and with them decisions, are the same on every machine.

Usage: adaptation_test.py PATH_TO_COPUS [unittest options].
"""

import json
import re
import shutil
import signal
import sys
import unittest

from program_test_support import TIMEOUT, VIRTUAL_CLUSTER, WITH_TORCH, ProgramTest, batch_of


def parallel(data=1, tensor=1, pipeline=1):
    return f"[parallel]\ndata_parallel = {data}\ntensor_parallel = {tensor}\npipeline_parallel = {pipeline}\n"


def adapt(**settings):
    return "[adapt]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items())


def configuration(data=1, tensor=1, pipeline=1, batch=8, micro=4):
    return f"d={data},t={tensor},p={pipeline},B={batch},b={micro}"


class AdaptationTest(ProgramTest):
    def write_adapting_run(self, name="run.toml", steps=20, layout=None, checkpoint_interval=0, **settings):
        self.write_run(name, steps=steps, checkpoint_interval=checkpoint_interval,
                       more=(layout or parallel()) + adapt(**settings) + VIRTUAL_CLUSTER)

    def write_script(self, *decisions):
        """Writes a script with these decisions, each as (after_step, configuration)."""
        lines = (json.dumps({"after_step": step, "configuration": target, "rate_factor": 1.25})
                 for step, target in decisions)
        self.write("script.jsonl", "".join(line + "\n" for line in lines))

    def events(self, run, kind=None):
        lines = (self.folder / run / "decisions.jsonl").read_text().splitlines()
        events = [json.loads(line) for line in lines]
        return [event for event in events if kind in (None, event["event"])]

    def records(self, run):
        return [json.loads(line) for line in (self.folder / run / "run.jsonl").read_text().splitlines()]

    def batches(self, run):
        return [record["global_batch"] for record in self.records(run)]

    def layouts(self, run):
        return [record["strategy"] for record in self.records(run)]

    def summary(self, run):
        return json.loads((self.folder / run / "summary.json").read_text())


class Mistakes(AdaptationTest):
    def test_steering_what_does_not_run(self):
        self.assert_refused("ctl", "r", "pin", says=["no run in r"])
        self.assert_refused("ctl", "r", "pni", says=['"pni"', 'did you mean "pin"'])
        self.assert_refused("ctl", "r", "force", says=["d=2,t=1,p=2,B=32"])
        self.assert_refused("ctl", "r", "force", "d=2,t=x", says=['"t=x"', "whole number"])
        self.assert_refused("ctl", "r", "force", "d=2,q=1", says=['"q=1"'])
        self.assert_refused("ctl", "r", "pin", "d=2", says=["takes nothing more", "d=2"])
        self.assert_refused("ctl", "r", "pin", "--wait", "soon", says=["--wait soon"])

    @unittest.skipUnless(WITH_TORCH, "needs libtorch")
    def test_policies_that_cannot_decide(self):
        self.write_run("run.toml", more=adapt(policy="copus"))
        self.assert_refused("train", "run.toml", "--run-dir", "r", says=["how fast", "copus profile --machine"])
        self.write_adapting_run(policy="script", file="nowhere.jsonl")
        self.assert_refused("train", "run.toml", "--run-dir", "r", says=["nowhere.jsonl"])
        self.write("script.jsonl", "no JSON\n")
        self.write_adapting_run(policy="script", file="script.jsonl")
        self.assert_refused("train", "run.toml", "--run-dir", "r", says=["script.jsonl:1"])
        self.write_adapting_run(policy="steps", schedule="0:many")
        self.assert_refused("train", "run.toml", "--run-dir", "r", says=["adapt.schedule"])


@unittest.skipUnless(WITH_TORCH, "needs libtorch")
class Batches(AdaptationTest):
    """Changes of only the batch and micro-batch, on one rank."""

    def train_script(self, run="r", *more):
        self.write_script((5, configuration(batch=16)), (10, configuration(batch=32, micro=8)))
        self.write_adapting_run(policy="script", file="script.jsonl", steps=40)
        return self.assert_done("train", "run.toml", "--run-dir", run, *more)

    def test_a_script_changes_the_batch_and_says_so(self):
        output = self.train_script().stdout
        self.assertIn("step 5: B=8 -> B=16", output)
        self.assertIn("step 10: B=16,b=4 -> B=32,b=8", output)
        records = self.records("r")
        self.assertEqual(self.batches("r")[:12], [8] * 5 + [16] * 5 + [32] * 2)
        self.assertEqual(records[-1]["consumed_samples"], sum(self.batches("r")))
        self.assertGreaterEqual(records[-1]["consumed_samples"], 40 * 8, "the end is that of max_steps first batches")
        self.assertEqual(self.summary("r")["batch_changes"], 2)
        self.assertEqual(self.summary("r")["relayouts"], 0)
        self.assertIn("B=8 -&gt; B=16", (self.folder / "r" / "report.html").read_text())

    def test_the_log_of_a_run_as_script_repeats_it(self):
        self.train_script()
        self.write_adapting_run("again.toml", policy="script", file="r/decisions.jsonl", steps=40)
        self.assert_done("train", "again.toml", "--run-dir", "again")
        self.assertEqual(self.losses("again"), self.losses("r"))

    def test_a_resumed_run_goes_on_as_it_was(self):
        self.train_script("whole")
        self.write_adapting_run("half.toml", policy="script", file="script.jsonl", steps=40, checkpoint_interval=7)
        process = self.start("train", "half.toml", "--run-dir", "r")
        self.wait_for_steps("r", 8, process)
        process.kill()
        process.communicate()
        output = self.assert_done("train", "--resume", "--run-dir", "r").stdout
        self.assertIn("resumed", output)
        self.assertNotIn("afresh", output)
        self.assertEqual(self.losses("r"), self.losses("whole"))
        switches = [(event["after_step"], batch_of(event["to"])) for event in self.events("r", "switch")]
        self.assertEqual(switches, [(5, 16), (10, 32)])

    def test_a_schedule_by_samples(self):
        self.write_adapting_run(policy="steps", schedule="0:8 64:16", steps=20)
        self.assert_done("train", "run.toml", "--run-dir", "r")
        self.assertEqual(self.batches("r"), [8] * 8 + [16] * 6)  # as many samples as 20 steps of 8 have

    def test_a_schedule_by_hand_is_carried_out_exactly_also_without_a_known_speed(self):
        self.write_adapting_run(policy="steps", schedule="0:8 24:12", steps=8)
        config = self.folder / "run.toml"
        config.write_text(config.read_text().split("[cluster]")[0])
        self.assert_done("train", "run.toml", "--run-dir", "done")
        self.assertEqual(self.batches("done"), [8] * 3 + [12] * 4)
        self.assertEqual({record["micro_batch"] for record in self.records("done")}, {self.records("done")[0]["micro_batch"]})
        self.assert_done("replay", "done")
        self.assert_refused("train", "run.toml", "--run-dir", "r", "--set", "adapt.schedule=0:8 24:13",
                            says=["adapt.schedule has batch 13"])
        self.assert_refused("train", "run.toml", "--run-dir", "r", "--set", "adapt.schedule=0:16",
                            says=["train.global_batch"])

    def test_a_resumed_run_begins_a_schedule_where_the_schedule_is(self):
        self.write_adapting_run(policy="none", steps=4)
        self.assert_done("train", "run.toml", "--run-dir", "r")
        to_schedule = ("--set", "adapt.policy=steps", "--set", "train.max_steps=8", "--set")
        refused = self.copus("train", "--resume", "--run-dir", "r", *to_schedule, "adapt.schedule=0:8 24:12 44:16")
        self.assertEqual(refused.returncode, 2, refused.stdout)
        self.assertIn("has batch 12 for one step and then 16", refused.stderr)
        self.assert_done("train", "--resume", "--run-dir", "r", *to_schedule, "adapt.schedule=0:8 24:12")
        self.assertEqual(self.batches("r"), [8] * 4 + [12] * 3)

    # A rate given for batches of one: in a larger batch the critical batch caps it from the start.
    RATE = ("--set", "optimizer.reference_batch=1")

    def outcomes(self, run):
        return [(record["loss"], record["lr"], record["rate_factor"]) for record in self.records(run)]

    def assert_rate_follows(self, run):
        records = self.records(run)
        self.assertAlmostEqual(records[0]["rate_factor"], 8 ** 0.5)
        changes = [after["rate_factor"] / before["rate_factor"] for before, after in zip(records, records[1:])
                   if before["global_batch"] == after["global_batch"]]
        self.assertTrue(any(change != 1 for change in changes), "the rate follows while the batch stays")
        self.assertTrue(all(1 / 1.05 - 1e-9 < change < 1.05 + 1e-9 for change in changes), changes)

    def test_the_learning_rate_follows_the_noise_scale_and_a_script_repeats_it(self):
        self.write_adapting_run(policy="copus", steps=80, interval_samples=16, dwell_samples=128)
        self.assert_done("train", "run.toml", "--run-dir", "r", *self.RATE)
        self.assert_rate_follows("r")
        self.assert_done("replay", "r")
        self.write_adapting_run("again.toml", policy="script", file="r/decisions.jsonl", steps=80)
        self.assert_done("train", "again.toml", "--run-dir", "again", *self.RATE)
        self.assertEqual(self.outcomes("again"), self.outcomes("r"))

    def test_the_learning_rate_of_a_resumed_run_follows_as_it_would_have(self):
        settings = {"policy": "static", "steps": 60, "interval_samples": 16}
        self.write_adapting_run(**settings)
        self.assert_done("train", "run.toml", "--run-dir", "whole", *self.RATE)
        self.assert_rate_follows("whole")
        self.write_adapting_run("half.toml", checkpoint_interval=7, **settings)
        process = self.start("train", "half.toml", "--run-dir", "r", *self.RATE)
        self.wait_for_steps("r", 16, process)
        process.kill()
        process.communicate()
        self.assertNotIn("afresh", self.assert_done("train", "--resume", "--run-dir", "r").stdout)
        self.assertEqual(self.outcomes("r"), self.outcomes("whole"))

    def test_a_short_run_decides_by_default_and_goes_on_with_a_later_end(self):
        self.write_adapting_run(policy="copus", steps=40)  # 320 samples, fewer than adapt.interval_samples
        self.assert_done("train", "run.toml", "--run-dir", "r")
        self.assertGreaterEqual(len(self.events("r", "decision")), 15)
        self.assert_done("replay", "r")
        for end in ("train.max_steps=80", "train.max_seconds=1000"):
            output = self.assert_done("train", "--resume", "--run-dir", "r", "--set", end).stdout
            self.assertIn("changed    train.max_", output)
            self.assertNotIn("afresh", output)
        self.assertEqual(len(self.events("r", "begin")), 1)
        self.assert_done("replay", "r")

    def test_lines_of_the_logs_that_are_lost_or_out_of_their_place(self):
        self.write_adapting_run(policy="static", steps=20, interval_samples=16, checkpoint_interval=10)
        self.assert_done("train", "run.toml", "--run-dir", "r")
        self.assert_done("replay", "r")
        steps, events = ((self.folder / "r" / name).read_text().splitlines(keepends=True)
                         for name in ("run.jsonl", "decisions.jsonl"))

        def refused(*arguments, says, steps=steps, events=events):
            self.write("r/run.jsonl", "".join(steps))
            self.write("r/decisions.jsonl", "".join(events))
            self.assert_refused(*arguments, says=says, leaves_run_dir=True)

        shutil.rmtree(self.folder / "r" / "checkpoints" / "step-00000020")
        for arguments in (("replay", "r"), ("train", "--resume", "--run-dir", "r")):
            refused(*arguments, steps=steps[:5] + steps[4:], says=["run.jsonl, line 6", "remove the line"])
            refused(*arguments, events=[*events[:3], events[1], *events[3:]],
                    says=["decisions.jsonl, line 4", "remove the line"])
        refused("replay", "r", steps=steps[:4] + steps[6:], says=["run.jsonl has no line of steps 5 to 6", "nobody can tell"])
        refused("replay", "r", "--policy", "copus", steps=steps[:4] + steps[6:], says=["steps 5 to 6"])
        output = self.assert_done("train", "--resume", "--run-dir", "r").stdout
        self.assertIn("run.jsonl has no line of steps 5 to 6", output)
        self.assertIn("decides afresh", output)
        self.assert_done("replay", "r")

    def test_advice_moves_nothing(self):
        settings = {"interval_samples": 64, "dwell_samples": 64}
        self.write_run("plain.toml", steps=60, more=VIRTUAL_CLUSTER)
        self.assert_done("train", "plain.toml", "--run-dir", "plain")
        self.write_adapting_run(policy="copus", advise=True, steps=60, **settings)
        self.assert_done("train", "run.toml", "--run-dir", "r")
        self.assertEqual(self.losses("r"), self.losses("plain"))
        self.assertTrue(self.events("r", "decision"))
        self.assertFalse(self.events("r", "switch"))


@unittest.skipUnless(WITH_TORCH, "needs libtorch")
class Layouts(AdaptationTest):
    """Re-layouts of four ranks on two nodes."""

    def test_a_script_moves_to_other_layouts_and_is_repeated_bitwise(self):
        self.write_script((5, configuration(data=4, micro=2)), (12, configuration(tensor=2, pipeline=2, batch=16)))
        self.write_adapting_run(policy="script", file="script.jsonl", layout=parallel(data=2, pipeline=2), verify=True)
        output = self.assert_done("train", "run.toml", "--run-dir", "r").stdout
        self.assertIn("d=2,t=1,p=2,b=4 -> d=4,t=1,p=1,b=2", output)
        self.assertIn("; pause ", output)
        self.assertEqual(self.layouts("r")[4:6] + self.layouts("r")[-1:], ["d=2,t=1,p=2", "d=4,t=1,p=1", "d=1,t=2,p=2"])
        self.assertEqual(self.summary("r")["relayouts"], 2)
        self.assertEqual(len(self.summary("r")["relayout_pause_seconds"]), 2)
        self.write_adapting_run("again.toml", policy="script", file="r/decisions.jsonl",
                                layout=parallel(data=2, pipeline=2))
        self.assert_done("train", "again.toml", "--run-dir", "again")
        self.assertEqual(self.losses("again"), self.losses("r"))

    def test_copus_moves_by_itself_and_its_decisions_replay(self):
        self.write_adapting_run(policy="copus", layout=parallel(tensor=2, pipeline=2), steps=60, interval_samples=64,
                                dwell_samples=128)
        self.assert_done("train", "run.toml", "--run-dir", "r")
        self.assertGreater(self.summary("r")["relayouts"] + self.summary("r")["batch_changes"], 0)
        self.assert_done("replay", "r")


@unittest.skipUnless(WITH_TORCH, "needs libtorch")
class Control(AdaptationTest):
    """copus ctl and a running job."""

    def start_run(self, **settings):
        self.write_adapting_run(steps=100000, **{"policy": "static", **settings})
        process = self.start("train", "run.toml", "--run-dir", "r")
        self.addCleanup(process.kill)
        self.wait_for_steps("r", 3, process)
        return process

    def end(self, process, how=signal.SIGTERM, code=75):
        process.send_signal(how)
        output, errors = process.communicate(timeout=TIMEOUT)
        self.assertEqual(process.returncode, code, output + errors)
        return output

    def test_a_forced_batch_comes_and_stays(self):
        process = self.start_run()
        self.assertIn("B=8,b=4 -> B=32,b=8", self.assert_done("ctl", "r", "force", "B=32,b=8").stdout)
        self.assertIn("pinned", self.assert_done("ctl", "r", "status").stdout)
        self.assertIn("B=32,b=8", self.assert_done("ctl", "r", "status").stdout)
        self.assertIn("decides again", self.assert_done("ctl", "r", "unpin").stdout)
        self.assertNotIn("pinned", self.assert_done("ctl", "r", "status").stdout)
        self.assertIn("stays", self.assert_done("ctl", "r", "pin").stdout)
        self.assert_refused("ctl", "r", "force", "B=33", says=["33 is no multiple"], leaves_run_dir=True)
        self.assert_refused("ctl", "r", "force", "d=2", says=["needs 2 ranks, and the job trains on 1"], leaves_run_dir=True)
        self.end(process)
        self.assertEqual(self.batches("r")[-1], 32)
        self.assertEqual([event["command"] for event in self.events("r", "command")], ["force", "unpin", "pin"])
        self.assert_refused("ctl", "r", "pin", says=["not running", "interrupted"], leaves_run_dir=True)

    def test_what_is_printed_can_be_given_back(self):
        process = self.start_run(layout=parallel(data=2, pipeline=2))
        ctl = lambda *arguments: self.assert_done("ctl", "r", *arguments).stdout
        printed = re.search(r"(d=\S+);", ctl("status")).group(1)
        self.assertEqual(printed, "d=2,t=1,p=2,B=8,b=4")
        self.assertIn(f"it is there already, and stays: {printed}", ctl("force", printed))
        told = ctl("force", "d=4,t=1,p=1,b=2,zero=1,recompute=full")
        before, after = re.search(r": (\S+) -> ([^ ;]+)", told).groups()
        self.assertEqual(after, "d=4,t=1,p=1,b=2,zero=1,recompute=full")
        self.assertIn("it is there already", ctl("force", after))
        self.assertIn(f"{after} -> {before}", ctl("force", before))
        self.assertIn(printed, ctl("status"))
        self.end(process)

    def test_a_pause_stands_still_and_is_no_training(self):
        process = self.start_run()
        self.assert_done("ctl", "r", "pause")
        self.assertIn("paused", self.assert_done("ctl", "r", "status").stdout)
        steps = self.steady_steps()
        self.assertIn("once the run goes on", self.assert_done("ctl", "r", "force", "B=16").stdout)
        self.assertEqual(len(self.records("r")), steps)
        self.assert_done("ctl", "r", "resume")
        self.wait_for_steps("r", steps + 3, process)
        self.end(process)
        self.assertEqual(self.batches("r")[-1], 16)
        elapsed = [record["elapsed_seconds"] for record in self.records("r")]
        longest = max(after - before for before, after in zip(elapsed, elapsed[1:]))
        self.assertLess(longest, 0.05, "a pause does not count as training")

    def test_a_signal_ends_a_pause_with_a_checkpoint(self):
        process = self.start_run()
        self.assert_done("ctl", "r", "pause")
        steps = self.steady_steps()
        self.end(process, signal.SIGINT, 130)
        self.assertTrue((self.folder / "r" / "checkpoints" / f"step-{steps:08}").exists())

    def steady_steps(self):
        """Returns the steps of a paused run, which answers `status` during the pause."""
        while True:
            before = len(self.records("r"))
            self.assert_done("ctl", "r", "status")
            self.assert_done("ctl", "r", "status")
            if len(self.records("r")) == before:
                return before

    def start_plain_run(self, *arguments, layout=""):
        """Starts a run without a policy and without a description of its cluster."""
        shutil.rmtree(self.folder / "r", ignore_errors=True)
        self.write_run("run.toml", steps=100000, more=layout + adapt(verify=True))
        process = self.start("train", "run.toml", "--run-dir", "r", *arguments)
        self.addCleanup(process.kill)
        self.wait_for_steps("r", 3, process)
        return process

    def go_on(self, steps):
        """Resumes the run for `steps` more steps of its first batch."""
        limit = self.records("r")[-1]["consumed_samples"] // 8 + steps
        return self.assert_done("train", "--resume", "--run-dir", "r", "--set", f"train.max_steps={limit}").stdout

    def test_a_run_without_a_policy_is_forced_and_goes_on_so(self):
        process = self.start_plain_run()
        ctl = lambda *arguments: self.assert_done("ctl", "r", *arguments).stdout
        for command in ("pin", "unpin"):
            self.assertIn("stays with d=1,t=1,p=1,B=8,b=4", ctl(command))
        self.assertIn("B=8,b=4 -> B=32,b=8", ctl("force", "B=32,b=8"))
        self.assertIn("B=32,b=8; policy none\n", ctl("status"))
        self.assert_refused("ctl", "r", "force", "d=2", says=["needs 2 ranks", "d x t x p is 1"], leaves_run_dir=True)
        ctl("pause")
        ctl("resume")
        self.end(process)
        moved = len(self.records("r"))
        self.assertEqual(self.batches("r")[-1], 32)
        self.assertFalse(self.events("r", "decision"))
        self.assert_done("replay", "r")
        output = self.go_on(steps=40)
        self.assertNotIn("afresh", output)
        self.assertIn("Changed on the way: 0 re-layouts, 1 batch change; ended with d=1,t=1,p=1,B=32,b=8.", output)
        self.assertEqual(set(self.batches("r")[moved:]), {32})
        self.assertEqual(json.loads(self.assert_done("replay", "r", "--json").stdout)["switches"], 1)

    def test_a_run_without_a_policy_is_moved_to_other_layouts(self):
        for heals in ("true", "false"):  # if so, ranks read each other's state; otherwise they send it
            with self.subTest(heal=heals):
                process = self.start_plain_run("--set", f"heal.enabled={heals}", layout=parallel(data=2, pipeline=2))
                told = self.assert_done("ctl", "r", "force", "d=1,t=2,p=2,B=16").stdout
                self.assertIn("d=2,t=1,p=2,B=8 -> d=1,t=2,p=2,B=16; pause ", told)
                self.end(process)
                self.assertEqual(self.layouts("r")[-1], "d=1,t=2,p=2")
                self.assertIn("d=1,t=2,p=2,B=16,b=4", self.go_on(steps=20))
                self.assertEqual(self.layouts("r")[-1], "d=1,t=2,p=2")
                self.assert_done("replay", "r")


if __name__ == "__main__":
    unittest.main(argv=[__file__] + sys.argv[2:])
