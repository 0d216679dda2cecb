"""Tests runs that are interrupted: signals, time limits, `kill -9` at random moments.

Usage: interruptions_test.py PATH_TO_COPUS [unittest options]. With COPUS_KILL_ROUNDS=50 the kill test makes 50 rounds.
"""

import json
import random
import shutil
import signal
import subprocess
import sys
import time
import unittest

from program_test_support import COPUS, KILL_ROUNDS, TIMEOUT, WITH_TORCH, ProgramTest


@unittest.skipUnless(WITH_TORCH, "needs libtorch")
class Interruptions(ProgramTest):
    STEPS = 120

    def setUp(self):
        super().setUp()
        self.write_run("long.toml", steps=self.STEPS, checkpoint_interval=10)

    def expected(self):
        self.assert_done("train", "long.toml", "--run-dir", "expected")
        return self.losses("expected")

    def end_early(self, end, exit_code, arguments=()):
        process = self.start("train", "long.toml", "--run-dir", "r", "--set", "checkpoint.interval=0", *arguments)
        self.wait_for_steps("r", 3, process)
        end(process)
        output, errors = process.communicate(timeout=TIMEOUT)
        self.assertEqual(process.returncode, exit_code, output + errors)
        self.assertIn("copus train --resume --run-dir r", output)
        steps = len(self.losses("r"))
        self.assertLess(steps, self.STEPS)
        self.assertTrue((self.folder / "r" / "checkpoints" / f"step-{steps:08}").exists())
        self.assert_done("train", "--resume", "--run-dir", "r")
        self.assertEqual(self.losses("r"), self.expected())

    def test_interrupt(self):
        self.end_early(lambda process: process.send_signal(signal.SIGINT), 130)

    def test_terminate(self):
        self.end_early(lambda process: process.send_signal(signal.SIGTERM), 75)

    def test_notices_of_an_end(self):
        """SIGHUP comes when a terminal is gone, SIGUSR1 and SIGUSR2 from schedulers. A launcher forwards them to its
        ranks."""
        for notice, ranks in [(signal.SIGHUP, 1), (signal.SIGUSR1, 1), (signal.SIGUSR2, 2), (signal.SIGHUP, 2)]:
            with self.subTest(notice=notice.name, ranks=ranks):
                shutil.rmtree(self.folder / "r", ignore_errors=True)
                shutil.rmtree(self.folder / "expected", ignore_errors=True)
                self.write_run("long.toml", steps=self.STEPS, checkpoint_interval=10,
                               more=f"[parallel]\npipeline_parallel = {ranks}\n")
                self.end_early(lambda process: process.send_signal(notice), 75)

    def test_an_ignored_notice_changes_nothing(self):
        process = self.start("train", "long.toml", "--run-dir", "r",
                             preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
        self.wait_for_steps("r", 3, process)
        process.send_signal(signal.SIGHUP)
        output, errors = process.communicate(timeout=TIMEOUT)
        self.assertEqual(process.returncode, 0, output + errors)

    def test_a_checkpoint_is_written_by_time(self):
        for ranks in (1, 2):
            run = f"timed-{ranks}"
            process = self.start("train", "long.toml", "--run-dir", run, "--set", "train.max_steps=1000000", "--set",
                                 "checkpoint.interval=0", "--set", "checkpoint.interval_seconds=1", "--set",
                                 f"parallel.pipeline_parallel={ranks}")
            checkpoints = self.folder / run / "checkpoints"
            deadline = time.monotonic() + TIMEOUT
            while not list(checkpoints.glob("step-*/manifest.json")):
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.01)
            process.kill()
            output, errors = process.communicate(timeout=TIMEOUT)
            self.assertRegex(output, r"saves +a checkpoint of .* every 1.00 s at least; keeps 2")
            self.assertRegex(output, r"step \d+: checkpoint; training stood still for 0\.\d\d s")

    def test_an_evaluation_that_was_cut_short_is_done_when_the_run_is_resumed(self):
        self.write_run("long.toml", steps=40, checkpoint_interval=10, more="keep_last = 10\n")
        expected = self.expected()
        held_out = self.held_out_losses("expected")
        self.assertEqual(sorted(held_out), [20, 40])
        log = self.folder / "expected" / "run.jsonl"
        for step in (20, 40):
            # Makes the log look as if the run had been stopped in the evaluation after this step.
            lines = [line for line in log.read_text().splitlines(keepends=True) if json.loads(line)["step"] <= step]
            lines[-1] = json.dumps(json.loads(lines[-1]) | {"held_out_loss": None}) + "\n"
            log.write_text("".join(lines))
            for later in range(step + 10, 50, 10):
                shutil.rmtree(self.folder / "expected" / "checkpoints" / f"step-{later:08}", ignore_errors=True)
            result = self.assert_done("train", "--resume", "--run-dir", "expected")
            self.assertEqual(self.held_out_losses("expected"), held_out)
            self.assertIn(f"step {step}: held-out loss", result.stdout)
            self.assertEqual(self.losses("expected"), expected)

    def test_signals_in_an_evaluation_leave_it_to_the_resumed_run(self):
        """The second signal comes while the resumed run makes up for the evaluation."""
        for name in ("a", "b"):
            self.write(f"{name}.txt", "".join(f"{name} {i}: words that nobody trains on\n" for i in range(1600)))
        for ranks in (1, 2):
            with self.subTest(ranks=ranks):
                self.write_run("run.toml", steps=3, more=f"[parallel]\ndata_parallel = {ranks}\n")
                settings = [part for setting in ("data.held_out_fraction=0", 'data.held_out=["a.txt","b.txt"]',
                                                 "evaluate.max_batches=0", "evaluate.interval=2")
                            for part in ("--set", setting)]
                whole, run = f"whole-{ranks}", f"cut-{ranks}"
                process = self.start("train", "run.toml", "--run-dir", whole, *settings)
                self.wait_for_steps(whole, 1, process)
                began = time.monotonic()
                self.wait_for_steps(whole, 2, process)
                seconds = time.monotonic() - began  # of step 2 with its evaluation, which takes most of the time
                output, errors = process.communicate(timeout=TIMEOUT)
                self.assertEqual(process.returncode, 0, output + errors)
                expected = self.evaluations(whole)
                self.assertEqual([(step, sorted(losses)) for step, (_, losses) in expected.items()],
                                 [(2, ["a.txt", "b.txt"]), (3, ["a.txt", "b.txt"])])

                process = self.start("train", "run.toml", "--run-dir", run, *settings)
                self.wait_for_steps(run, 1, process)
                self.terminate_after(seconds / 10, process)
                resumed = self.start("train", "--resume", "--run-dir", run)
                while not (line := resumed.stdout.readline()).startswith("run "):
                    self.assertTrue(line, "the run did not begin")
                self.terminate_after(seconds / 10, resumed)
                self.assertEqual(sorted(self.losses(run)), [1, 2])
                self.assertEqual(self.evaluations(run), {})
                self.assertIn("step 2: held-out loss", self.assert_done("train", "--resume", "--run-dir", run).stdout)
                self.assertEqual(self.evaluations(run), expected)
                self.assertEqual(self.losses(run), self.losses(whole))

    def terminate_after(self, seconds, process):
        time.sleep(seconds)
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=TIMEOUT)
        self.assertEqual(process.returncode, 75, output + errors)

    def evaluations(self, run):
        """Maps each evaluated step to its held-out loss and its losses by source, as written in the log."""
        records = [json.loads(line, parse_float=str) for line in (self.folder / run / "run.jsonl").read_text().splitlines()]
        return {record["step"]: (record["held_out_loss"], record["held_out_losses"]) for record in records
                if record["held_out_loss"] is not None}

    def held_out_losses(self, run):
        records = map(json.loads, (self.folder / run / "run.jsonl").read_text().splitlines())
        return {record["step"]: record["held_out_loss"] for record in records if record["held_out_loss"] is not None}

    def test_the_printed_commands_can_be_pasted(self):
        for run in ("my run", "it's $HOME; echo `id` & *"):
            process = self.start("train", "long.toml", "--run-dir", run)
            self.wait_for_steps(run, 3, process)
            process.send_signal(signal.SIGTERM)
            output, errors = process.communicate(timeout=TIMEOUT)
            self.assertEqual(process.returncode, 75, output + errors)
            command = next(line for line in output.splitlines() if " train --resume --run-dir " in line).strip()
            arguments = command.split(" train ", 1)[1]
            result = subprocess.run(["sh", "-c", f"{COPUS} train {arguments}"], cwd=self.folder, capture_output=True, text=True,
                                    timeout=TIMEOUT)
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
            self.assertEqual(len(self.losses(run)), self.STEPS)
            command = next(line for line in result.stdout.splitlines() if line.startswith("Sample text:"))
            result = subprocess.run(["sh", "-c", command.removeprefix("Sample text:")], cwd=self.folder, text=True,
                                    capture_output=True, timeout=TIMEOUT)
            # A slow machine prints progress lines.
            errors = [line for line in result.stderr.splitlines() if " tokens, " not in line]
            self.assertEqual((result.returncode, errors), (0, []))
            self.assertTrue(result.stdout)

    def test_commands_read_a_run_that_deletes_its_checkpoints(self):
        """The run writes a checkpoint after each step and keeps one. The reader is stopped at some point, until the
        newest checkpoint that it may have found is gone."""
        run = self.start("train", "long.toml", "--run-dir", "r", "--set", "train.max_steps=1000000", "--set",
                         "checkpoint.interval=1", "--set", "checkpoint.keep_last=1", "--set", "log.interval=1000000",
                         "--set", "evaluate.interval=0")
        self.wait_for_checkpoint("r", 1)
        began = time.monotonic()
        self.assert_done("convert", "--from", "r", "--to", "hf")
        seconds, moments = time.monotonic() - began, random.Random(1)
        for round_ in range(KILL_ROUNDS):
            reader = self.start("convert", "--from", "r", "--to", f"hf-{round_}")
            time.sleep(moments.uniform(0, seconds))
            reader.send_signal(signal.SIGSTOP)
            found, deadline = self.newest_checkpoint(), time.monotonic() + TIMEOUT
            while found.exists() or self.newest_checkpoint() <= found:
                self.assertIsNone(run.poll(), "the run has ended meanwhile")
                self.assertLess(time.monotonic(), deadline, f"{found} is not replaced")
                time.sleep(0.005)
            reader.send_signal(signal.SIGCONT)
            output, errors = reader.communicate(timeout=TIMEOUT)
            self.assertEqual(reader.returncode, 0, output + errors)
        for _ in range(3):
            self.assert_done("generate", "--checkpoint", "r", "--tokens", "1")
        run.send_signal(signal.SIGTERM)
        output, errors = run.communicate(timeout=TIMEOUT)
        self.assertEqual(run.returncode, 75, output + errors)

    def newest_checkpoint(self):
        folder = self.folder / "r" / "checkpoints"
        return max(folder.glob("step-????????"), default=folder)

    def test_max_time(self):
        """The limit is per job, and resuming under the same limit always gets further."""
        steps = 3
        arguments = ["train", "long.toml", "--set", f"train.max_steps={steps}", "--run-dir"]
        self.assert_done(*arguments, "expected")
        codes = []
        while not codes or codes[-1] == 75:
            codes.append(self.copus(*arguments, "r", "--resume", "--max-time", "0.001s").returncode)
            self.assertLessEqual(len(codes), steps + 1, "each makes a step, or the evaluation at the end")
        self.assertEqual(codes[-1], 0)
        self.assertEqual(self.losses("r"), self.losses("expected"))

    def test_the_page_of_a_long_log_is_left_out_where_the_time_limit_is_near(self):
        self.write_run("run.toml", steps=3)
        self.assert_done("train", "run.toml", "--run-dir", "r")
        log, page = self.folder / "r" / "run.jsonl", self.folder / "r" / "report.html"
        first, *others = log.read_text().splitlines(keepends=True)
        filler = "x" * (17 << 20)  # readers skip unknown fields
        log.write_text(f'{first.rstrip()[:-1]},"filler":"{filler}"}}\n' + "".join(others))
        page.unlink()
        result = self.copus("train", "--resume", "--run-dir", "r", "--set", "train.max_steps=9", "--max-time", "0.001s")
        self.assertEqual(result.returncode, 75, result.stdout + result.stderr)
        self.assertIn("report.html is not drawn, since the time limit is near; to draw it:", result.stdout)
        self.assertFalse(page.exists())
        self.assert_done("report", "r")
        self.assertTrue(page.exists())

    def test_a_second_interrupt_ends_at_once(self):
        process = self.start("train", "long.toml", "--run-dir", "r", "--set", "train.max_steps=1000000")
        self.wait_for_steps("r", 3, process)
        process.send_signal(signal.SIGSTOP)  # so that both signals arrive before the step ends
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGCONT)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=TIMEOUT)
        self.assertIn(process.returncode, [130, -signal.SIGINT])

    def test_a_long_step_tells_of_a_signal_at_once_and_a_second_one_ends_it(self):
        for run, end, ranks, code in [("term", signal.SIGTERM, 1, -signal.SIGTERM),
                                      ("int", signal.SIGINT, 1, -signal.SIGINT),
                                      ("job", signal.SIGTERM, 2, 75), ("ctrl_c", signal.SIGINT, 2, 130)]:
            process = self.start("train", "run.toml", "--run-dir", run, "--set", "train.global_batch=200000", "--set",
                                 f"parallel.data_parallel={ranks}")
            self.addCleanup(process.kill)
            while not (line := process.stdout.readline()).startswith("run "):
                self.assertTrue(line, "the run did not begin")
            process.send_signal(end)
            while "stops after this step" not in (line := process.stdout.readline()):
                self.assertTrue(line, "the run ended without a word about the signal")
            time.sleep(3)  # a SIGTERM within a second of the first may be the same, and ranks get it one by one
            process.send_signal(end)
            process.communicate(timeout=TIMEOUT)
            self.assertEqual(process.returncode, code)
            self.assertEqual(list((self.folder / run / "checkpoints").glob("step-*")), [])

    def test_two_processes_do_not_share_a_run(self):
        process = self.start("train", "long.toml", "--run-dir", "r", "--set", "train.max_steps=1000000")
        try:
            self.wait_for_steps("r", 3, process)
            self.assert_refused("train", "--resume", "--run-dir", "r", says=["process"], leaves_run_dir=True)
        finally:
            process.kill()
            process.communicate()

    def test_kill_at_random_moments(self):
        began = time.monotonic()
        expected = self.expected()
        duration = time.monotonic() - began
        moments = random.Random(1)
        arguments = ["train", "long.toml", "--run-dir", "r", "--resume"]
        for _ in range(KILL_ROUNDS):
            process = self.start(*arguments)
            time.sleep(moments.uniform(0, duration))
            process.kill()
            process.communicate()
            if (self.folder / "r" / "summary.json").exists():  # the run was complete: the next rounds start a new one
                self.assertEqual(self.losses("r"), expected)
                shutil.rmtree(self.folder / "r")
        self.assert_done(*arguments)
        self.assertEqual(self.losses("r"), expected)
        self.assertFalse(list((self.folder / "r" / "checkpoints").glob("*.partial")))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
