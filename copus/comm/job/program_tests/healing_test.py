"""Tests jobs whose ranks come and go, as processes: ranks that are killed, stopped or leave, and their replacements.

Usage: healing_test.py PATH_TO_LAUNCH_TEST_PROGRAM [unittest options]. With COPUS_KILL_ROUNDS=100 the tests that inject
faults at random moments make 100 rounds (6 without).
"""

import ctypes
import os
import random
import re
import signal
import socket
import sys
import time
import unittest

from launcher_test import ENDLESS, GONE_WITHIN, KILL_ROUNDS, PROGRAM, TIMEOUT, Job, LauncherTest, variables_of, wait_until

PIDFD_GETFD = 438  # the number of this system call, on every machine


def control_socket(pid):
    """The socket through which a rank communicates with its launcher."""
    process = os.pidfd_open(pid)
    number = ctypes.CDLL(None, use_errno=True).syscall(PIDFD_GETFD, process, int(variables_of(pid)["COPUS_CONTROL"]), 0)
    os.close(process)
    assert number >= 0, os.strerror(ctypes.get_errno())
    return socket.socket(fileno=number)


class HealingJob(Job):
    """A job whose program's output is read line by line."""

    def __init__(self, *options, ranks, milliseconds, environment=(), program=(PROGRAM,)):
        super().__init__([*program, "--heals", "1", "--ranks", str(ranks), "--milliseconds", str(milliseconds), *options],
                         environment)
        os.set_blocking(self.process.stdout.fileno(), False)
        self.output = ""

    def read(self):
        if self.process.stdout.closed:
            return self.output
        try:
            while more := os.read(self.process.stdout.fileno(), 1 << 16):
                self.output += more.decode()
        except BlockingIOError:
            pass
        return self.output

    def processes(self):
        """The pids by process number."""
        return self.ranks("COPUS_PROCESS")

    def epochs(self):
        """The members of each epoch that has begun, except epochs whose rank 0 was killed before printing them."""
        found = re.findall(r"^epoch (\d+) at \S+ of ([\d,]+)", self.read(), re.MULTILINE)
        numbers = [int(number) for number, _ in found]
        assert numbers == sorted(set(numbers)), found
        return [[int(member) for member in members.split(",")] for _, members in found]

    def wait_for_epoch(self, members):
        wait_until(lambda: self.epochs()[-1:] == [members])

    def wait_for_a_step(self):
        """Waits for a step of the latest epoch."""
        seen = len(self.read())
        wait_until(lambda: "\nstep " in self.read()[seen:] or self.process.poll() is not None)
        assert self.process.poll() is None, self.finish()

    def finish(self):
        os.set_blocking(self.process.stdout.fileno(), True)
        output, errors = self.process.communicate(timeout=TIMEOUT)
        self.output += output
        return self.output, errors


class HealingTest(LauncherTest):
    def start(self, *options, ranks=3, milliseconds=2):
        job = HealingJob(*options, ranks=ranks, milliseconds=milliseconds)
        self.addCleanup(job.kill)
        return job

    def start_endless(self, *options, **more):
        job = self.start(*ENDLESS, *options, **more)
        job.wait_for_a_step()
        return job

    def stop(self, job):
        """Ends the job in good order. Returns its output and errors."""
        job.process.send_signal(signal.SIGTERM)
        return self.finish(job, 75)

    def finish(self, job, code):
        output, errors = job.finish()
        self.assertEqual(job.process.returncode, code, output + errors)
        self.assert_nothing_left(job)
        return output, errors

    def assert_healed(self, errors, *failures):
        """Expects one line about each failure, and no other line of ours."""
        lines = [line for line in errors.splitlines() if "copus:" in line]
        self.assertEqual(len(lines), len(failures), errors)
        for line, failure in zip(sorted(lines), sorted(failures)):
            self.assertRegex(line, "^copus: " + failure)


class Failures(HealingTest):
    def test_without_a_failure_it_is_a_job_like_others(self):
        for ranks in [1, 3]:
            output, errors = self.finish(self.start("--steps", "50", ranks=ranks), 0)
            self.assertEqual(errors, "")
            self.assertIn("step 50", output)

    def test_any_rank_may_be_killed(self):
        for rank in [0, 1, 2]:
            job = self.start("--steps", "100", "--killed", str(rank), "--at", "7", "--replaces", "0")
            output, errors = self.finish(job, 0)
            others = [process for process in range(3) if process != rank]
            self.assertEqual(job.epochs(), [[0, 1, 2], others])
            self.assert_healed(errors, rf"rank {rank} \(pid \d+\) failed at step 7: killed by signal 9 \(Killed\); "
                                       r"the job goes on with 2 ranks$")
            self.assertRegex(output, rf"lost {rank}: rank {rank} \(pid \d+\) failed at step 7: killed by signal 9")
            self.assertIn("step 100", output)

    def test_the_clock_goes_on(self):
        job = self.start("--steps", "100", "--killed", "1", "--at", "50")
        output, _ = self.finish(job, 0)
        times = [float(time) for time in re.findall(r"^epoch \d+ at (\S+)", output, re.MULTILINE)]
        self.assertEqual(times, sorted(times))
        self.assertGreater(times[1], times[0] + 49 * 0.002, "49 steps took as long at least")

    def test_a_stopped_rank_is_named_and_ended(self):
        job = self.start_endless("--replaces", "0")
        pids = job.processes()
        os.kill(pids[1], signal.SIGSTOP)
        job.wait_for_epoch([0, 2])
        self.assertNotIn(pids[1], job.pids())
        _, errors = self.stop(job)
        self.assert_healed(errors, rf"rank 1 \(pid {pids[1]}\) failed at step \d+: stopped \(SIGSTOP\); the job goes on")

    def test_stopped_ranks_are_woken_where_no_other_one_is_left(self):
        job = self.start_endless("--replaces", "0")
        pids = job.processes()
        for rank, kind in [(1, signal.SIGSTOP), (2, signal.SIGSTOP), (0, signal.SIGKILL)]:
            os.kill(pids[rank], kind)
        job.wait_for_epoch([1, 2])
        job.wait_for_a_step()
        _, errors = self.stop(job)
        self.assert_healed(errors, rf"rank 0 \(pid {pids[0]}\) failed at step \d+: killed by signal 9")

    def test_all_ranks_may_be_stopped(self):
        job = self.start_endless("--replaces", "0")
        for pid in job.processes().values():
            os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: len(job.epochs()[-1]) < 3)
        job.wait_for_a_step()
        _, errors = self.stop(job)
        self.assertIn("stopped (SIGSTOP); the job goes on with 2 ranks", errors)

    def test_a_stopped_launcher_is_told_of_and_the_ranks_go_on(self):
        job = self.start_endless()
        job.process.send_signal(signal.SIGSTOP)
        told = self.wait_for_words(job, f"(pid {job.process.pid}) is stopped (SIGSTOP); training goes on")
        job.wait_for_a_step()
        job.process.send_signal(signal.SIGCONT)
        _, errors = self.stop(job)
        self.assertEqual((told + errors).count("copus:"), 1, told + errors)

    def test_an_error_of_its_own_is_told_and_healed(self):
        _, errors = self.finish(self.start("--steps", "50", "--broken", "2", "--at", "9"), 0)
        self.assertIn("rank 2: copus: internal error:", errors)
        self.assertIn("failed at step 9: it ended with an error of its own; the job goes on with 2 ranks", errors)

    def test_a_rank_in_whose_name_nonsense_comes_is_ended(self):
        for rank, nonsense in [(0, b"x"), (2, b"What was that?"), (1, 1000 * b"-")]:
            job = self.start_endless("--replaces", "0")
            pids = job.processes()
            with control_socket(pids[rank]) as control:
                control.send(nonsense)
            job.wait_for_epoch([process for process in range(3) if process != rank])
            self.assertNotIn(pids[rank], job.pids())
            _, errors = self.stop(job)
            self.assert_healed(errors, rf"rank {rank} \(pid {pids[rank]}\) failed at step \d+: it sent the launcher what is "
                                       r"no message; the job goes on with 2 ranks$")

    def test_a_rank_that_does_not_leave_the_epoch_is_ended(self):
        job = self.start_endless("--dawdles", "2", "--replaces", "0")
        os.kill(job.processes()[0], signal.SIGKILL)
        job.wait_for_epoch([1])
        _, errors = self.stop(job)
        self.assert_healed(errors, r"rank 0 \(pid \d+\) failed .*killed by signal 9",
                           r"rank 2 \(pid \d+\) failed .*it did not leave the epoch in time; the job goes on with 1 rank$")

    def test_two_at_once(self):
        for first, second in [(0, 1), (1, 3), (2, 3)]:
            job = self.start_endless(ranks=4)
            pids = job.processes()
            os.kill(pids[first], signal.SIGKILL)
            os.kill(pids[second], signal.SIGKILL)
            others = [process for process in range(4) if process not in (first, second)]
            job.wait_for_epoch(others + [4, 5])
            self.assertEqual(job.epochs()[0], [0, 1, 2, 3])
            _, errors = self.stop(job)
            self.assert_healed(errors, rf"rank \d \(pid {pids[first]}\).* killed by signal 9",
                               rf"rank \d \(pid {pids[second]}\).* killed by signal 9")

    def test_one_is_killed_while_the_others_regroup(self):
        for delay in [0, 0.02, 0.05, 0.1, 0.11, 0.12, 0.15]:
            job = self.start_endless("--replaces", "0", ranks=4)
            pids = job.processes()
            os.kill(pids[3], signal.SIGKILL)
            time.sleep(delay)
            os.kill(pids[0], signal.SIGKILL)
            job.wait_for_epoch([1, 2])
            _, errors = self.stop(job)
            self.assert_healed(errors, rf"rank 0 \(pid {pids[0]}\).* killed", rf"rank \d \(pid {pids[3]}\).* killed")

    def test_nobody_left(self):
        job = self.start_endless()
        job.wait_for_a_step()
        for pid in job.processes().values():
            os.kill(pid, signal.SIGKILL)
        _, errors = self.finish(job, 1)
        self.assert_one_message(errors, "killed by signal 9 (Killed); the job is ended")

    def test_a_job_whose_ranks_are_all_killed_before_it_has_begun_begins_again(self):
        job = self.start("--steps", "20", "--restarts", "1", "--begins", "0")
        for pid in job.wait_for_ranks(3, "COPUS_PROCESS").values():
            os.kill(pid, signal.SIGKILL)
        output, errors = self.finish(job, 0)
        self.assertIn("step 20", output)
        self.assertEqual(errors.count("training had not begun, and the ranks are started again"), 1, errors)

    def test_it_begins_again_too_where_the_launcher_has_killed_one_that_was_stopped(self):
        job = self.start_endless("--restarts", "1", "--begins", "0", "--replaces", "0")
        pids = job.processes()
        os.kill(pids[1], signal.SIGSTOP)
        os.kill(pids[0], signal.SIGKILL)
        job.wait_for_epoch([2])
        os.kill(pids[2], signal.SIGKILL)
        wait_until(lambda: job.read().count("\nepoch 0 at ") == 1 or job.process.poll() is not None)
        _, errors = self.stop(job)
        self.assertEqual(errors.count("training had not begun, and the ranks are started again"), 1, errors)

    def test_newcomers_that_are_left_alone_before_it_has_begun_are_started_again_with_the_others(self):
        job = self.start_endless("--restarts", "1", "--begins", "0")
        pids = job.processes()
        os.kill(pids[0], signal.SIGKILL)
        job.wait_for_epoch([1, 2, 3])
        os.kill(pids[1], signal.SIGKILL)
        os.kill(pids[2], signal.SIGKILL)
        wait_until(lambda: job.read().count("\nepoch 0 at ") == 1 or job.process.poll() is not None)
        _, errors = self.stop(job)
        self.assertEqual(errors.count("training had not begun, and the ranks are started again"), 1, errors)

    def test_it_does_not_begin_again_and_again(self):
        job = self.start("--begins", "0", "--steps", "20", "--killed", "0", "--at", "7", "--replaces", "0", "--restarts",
                         "2", ranks=1)
        _, errors = self.finish(job, 1)
        self.assertGreater(errors.count("the ranks are started again"), 1, errors)
        self.assertLessEqual(errors.count("the ranks are started again"), 20, errors)
        self.assert_one_message(errors, "killed by signal 9 (Killed); the job is ended")

    def test_an_error_of_its_own_before_the_job_has_begun_ends_it(self):
        for rank in [0, 2]:
            job = self.start("--broken", str(rank), "--at", "3", "--begins", "0", "--restarts", "3")
            _, errors = self.finish(job, 1)
            self.assertIn("copus: internal error:", errors)
            self.assert_one_message(errors, f"rank {rank} ", "the job is ended")
            self.assertNotIn("started again", errors)
            self.assertEqual(job.epochs(), [[0, 1, 2]])

    def test_mistakes_of_the_user_end_the_job(self):
        for rank in [0, 2]:
            _, errors = self.finish(self.start("--mistaken", str(rank), "--at", "7"), 2)
            self.assertEqual(errors, "copus: error: the disk is full\n")
            _, errors = self.finish(self.start("--mistake-before", str(rank)), 2)
            self.assertEqual(errors, "copus: error: there is no such file\n")

    def test_random_processes_struck_at_random_moments(self):
        moments = random.Random(2)
        job = self.start_endless(ranks=4)
        lost = []
        for round_number in range(KILL_ROUNDS):
            job.wait_for_a_step()
            time.sleep(moments.choice([0, 0.01, moments.uniform(0, 0.5)]))
            kind = moments.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP])
            struck = moments.sample(sorted(job.processes().items()), moments.choice([1, 1, 2]))
            with self.subTest(round=round_number, struck=struck, kind=kind):
                for _, pid in struck:
                    os.kill(pid, kind)
                lost += [number for number, _ in struck]
                # All are replaced by processes with new numbers.
                wait_until(lambda: len(job.epochs()[-1]) == 4 and not set(lost) & set(job.epochs()[-1]), 120)
        _, errors = self.stop(job)
        self.assertEqual(len(re.findall("the job goes on with|ended before it took part", errors)), len(lost), errors)

    def test_a_killed_launcher_takes_its_ranks_along(self):
        for delay in [0, 0.05, 0.2]:
            job = self.start_endless()
            os.kill(job.processes()[1], signal.SIGKILL)
            time.sleep(delay)
            job.process.kill()
            self.assert_nothing_left(job, GONE_WITHIN)
            job.finish()


class Newcomers(HealingTest):
    def test_one_joins_and_its_numbers_count(self):
        job = self.start("--steps", "400", "--killed", "0", "--at", "7")
        output, errors = self.finish(job, 0)
        self.assertEqual(job.epochs(), [[0, 1, 2], [1, 2], [1, 2, 3]])
        self.assertIn("step 400", output)
        self.assert_healed(errors, "rank 0 .*; the job goes on with 2 ranks")

    def test_one_that_dies_at_its_start_is_tried_again(self):
        job = self.start_endless("--killed", "0", "--at", "7", "--newcomers-die", "1")
        told = self.wait_for_words(job, "another one is started in 1 s")
        _, errors = self.stop(job)
        errors = told + errors
        self.assertEqual(job.epochs(), [[0, 1, 2], [1, 2]])
        ended = r"process {} \(pid \d+\) ended before it took part: killed by signal 9 \(Killed\){}$"
        self.assert_healed(errors, "rank 0 .*; the job goes on with 2 ranks", ended.format(3, ""),
                           ended.format(4, "; another one is started in 0.5 s"),
                           ended.format(5, "; another one is started in 1 s"))

    def test_one_that_is_stopped_is_ended_and_another_one_comes(self):
        job = self.start_endless()
        os.kill(job.processes()[1], signal.SIGKILL)
        os.kill(wait_until(lambda: job.processes().get(3)), signal.SIGSTOP)
        job.wait_for_epoch([0, 2, 4])
        _, errors = self.stop(job)
        self.assert_healed(errors, "rank 1 .*; the job goes on with 2 ranks",
                           r"(process 3 \(pid \d+\) ended before it took part|rank 2 .* failed.*): stopped \(SIGSTOP\)")

    def test_a_mistake_of_one_does_not_end_the_job(self):
        job = self.start_endless("--killed", "0", "--at", "7", "--mistake-before", "3")
        job.wait_for_epoch([1, 2, 4])
        _, errors = self.stop(job)
        self.assert_healed(errors, "rank 0 .*; the job goes on with 2 ranks",
                           r"process 3 \(pid \d+\) ended before it took part: it exited with code 2$")

    def test_spares_wait_and_take_part_when_they_are_needed(self):
        job = self.start_endless("--used", "2", ranks=3)
        pids = job.processes()
        os.kill(pids[2], signal.SIGKILL)
        job.wait_for_epoch([0, 1, 3])
        os.kill(pids[0], signal.SIGKILL)
        job.wait_for_epoch([1, 3, 4])
        job.wait_for_a_step()
        output, errors = self.stop(job)
        self.assertIn("process 4 goes", output)
        # The others begin without the spare, which may not have published its place yet.
        self.assert_healed(errors, r"rank 2 .*failed(?: at waiting as a spare)?: killed", r"rank 0 .*killed by signal 9")


class Signals(HealingTest):
    def test_who_asks_to_leave_is_let_go_and_not_replaced(self):
        for process in [0, 2]:
            job = self.start_endless()
            os.kill(job.processes()[process], signal.SIGTERM)
            others = [other for other in range(3) if other != process]
            job.wait_for_epoch(others)
            job.wait_for_a_step()
            wait_until(lambda: sorted(job.processes()) == others)  # it ends only after the others have continued
            output, errors = self.stop(job)
            self.assertIn(f"process {process} goes", output)
            self.assertEqual(errors, "")
            self.assertEqual(job.epochs()[-1], others)

    def test_a_spare_leaves_as_well(self):
        job = self.start_endless("--used", "2")
        # The other ranks begin without it.
        wait_until(lambda: 2 in job.processes() and self.handles(job.processes()[2], signal.SIGTERM))
        os.kill(job.processes()[2], signal.SIGTERM)
        job.wait_for_epoch([0, 1])
        wait_until(lambda: sorted(job.processes()) == [0, 1])
        output, errors = self.stop(job)
        self.assertIn("process 2 goes", output)
        self.assertEqual(errors, "")

    def test_sigterm_and_sigint_of_the_launcher_end_the_job_in_good_order(self):
        for number, code in [(signal.SIGTERM, 75), (signal.SIGINT, 130)]:
            job = self.start_endless(milliseconds=20)  # some ranks get the signal a step before others
            job.process.send_signal(number)
            _, errors = self.finish(job, code)
            self.assertEqual(errors, "")
            self.assertEqual(len(job.epochs()), 1)

    def test_a_rank_that_is_killed_after_sigterm_is_not_replaced(self):
        job = self.start_endless("--every", "1", milliseconds=1000)
        pids = job.processes()
        job.process.send_signal(signal.SIGTERM)
        os.kill(pids[0], signal.SIGKILL)
        _, errors = self.finish(job, 75)
        self.assertEqual(job.epochs(), [[0, 1, 2], [1, 2]])
        self.assert_healed(errors, "rank 0 .*; the job goes on with 2 ranks")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
