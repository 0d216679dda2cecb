"""Tests ranks over MPI as processes: results on one and two hosts, and all kinds of failures of a rank.

Usage: mpi_test.py PATH_TO_MPI_TEST_PROGRAM PATH_TO_SCRIPTS [unittest options]. With COPUS_KILL_ROUNDS=50 random ranks
are stopped or killed 50 times (2 without).
"""

import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

PROGRAM = sys.argv[1]
TWO_HOSTS = str(pathlib.Path(sys.argv[2]) / "two-hosts")
ROUNDS = int(os.environ.get("COPUS_KILL_ROUNDS", "2"))
SIZE = 4
LONGEST_END = 60  # seconds from a failure to the end of all other ranks, twenty times what an idle machine takes
TIMEOUT = 240  # seconds, far more than anything here takes
SKIPPED = 77

ONE_HOST = ["mpirun", "-n", str(SIZE), "--oversubscribe", "--mca", "mpi_yield_when_idle", "1"]
if os.geteuid() == 0:
    ONE_HOST.append("--allow-run-as-root")


def has_ended(process):
    """Whether the process is gone, or a zombie that mpirun has yet to collect."""
    try:
        status = pathlib.Path(f"/proc/{process}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return re.search(r"^State:\s+Z", status, re.MULTILINE) is not None


class Job:
    """A running test program, which prints its ranks' process ids."""

    def __init__(self, launcher, what):
        self.errors = tempfile.TemporaryFile("w+")
        self.output = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen([*launcher, PROGRAM, what], stdin=subprocess.DEVNULL, stdout=self.output,
                                        stderr=self.errors)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(TIMEOUT)
        self.output.close()
        self.errors.close()

    def read(self, file):
        return os.pread(file.fileno(), 1 << 20, 0).decode(errors="replace")

    def wait(self):
        return self.process.wait(TIMEOUT)

    def wait_for_ranks(self):
        """Returns the ranks' process ids by rank; None if the launcher cannot run here."""
        deadline = time.monotonic() + TIMEOUT
        while time.monotonic() < deadline:
            if self.process.poll() == SKIPPED:
                return None
            found = dict(re.findall(r"rank (\d+) pid (\d+)\n", self.read(self.output)))
            if len(found) == SIZE:
                return [int(found[str(rank)]) for rank in range(SIZE)]
            if self.process.poll() is not None:
                break
            time.sleep(0.02)
        raise AssertionError("the ranks did not start:\n" + self.read(self.errors))


class MpiTest(unittest.TestCase):
    def setUp(self):
        self.random = random.Random(20240607)

    def assert_checks_pass(self, launcher):
        with Job(launcher, "check") as job:
            code = job.wait()
            if code == SKIPPED:
                self.skipTest(job.read(job.errors).strip())
            self.assertEqual(code, 0, job.read(job.errors))
            passed = re.findall(rf"rank \d of {SIZE}: (\d+) checks passed", job.read(job.output))
            self.assertEqual(len(passed), SIZE)
            self.assertGreater(min(map(int, passed)), 400)

    def assert_one_message(self, job, pattern):
        """Expects one message of ours among mpirun's."""
        errors = job.read(job.errors)
        ours = re.findall(r"^.*copus: error: (.*)$", errors, re.MULTILINE)
        self.assertEqual(len(ours), 1, errors)
        self.assertRegex(ours[0], pattern)

    def assert_failure(self, what, pattern):
        with Job(ONE_HOST, what) as job:
            self.assertNotEqual(job.wait(), 0)
            self.assert_one_message(job, pattern)

    def assert_signal_ends_job(self, launcher, number):
        with Job(launcher, "exchange") as job:
            processes = job.wait_for_ranks()
            if processes is None:
                self.skipTest(job.read(job.errors).strip())
            time.sleep(self.random.uniform(0, 1))
            victim = self.random.randrange(SIZE)
            os.kill(processes[victim], number)
            started = time.monotonic()
            others = [process for rank, process in enumerate(processes) if rank != victim]
            while not all(map(has_ended, others)):
                self.assertLess(time.monotonic() - started, LONGEST_END, job.read(job.errors))
                time.sleep(0.02)
            self.assertNotEqual(job.wait(), 0)
            self.assertTrue(has_ended(processes[victim]))
            if number == signal.SIGSTOP:
                # The place is missing if no heartbeat has carried it yet.
                failed = rf"rank {victim} \(pid {processes[victim]}\) failed( at step \d+)?"
                self.assert_one_message(job, failed + ": no heartbeat for 3 s")
            else:  # mpirun notices it first
                self.assertRegex(job.read(job.errors), rf"process rank {victim} .*signal 9")

    def test_collectives_and_messages(self):
        self.assert_checks_pass(ONE_HOST)

    def test_collectives_and_messages_across_two_hosts(self):
        self.assert_checks_pass([TWO_HOSTS, "--ranks", str(SIZE)])

    def test_stopped_rank(self):
        for _ in range(ROUNDS):
            self.assert_signal_ends_job(ONE_HOST, signal.SIGSTOP)

    def test_killed_rank(self):
        for _ in range(ROUNDS):
            self.assert_signal_ends_job(ONE_HOST, signal.SIGKILL)

    def test_stopped_rank_across_two_hosts(self):
        self.assert_signal_ends_job([TWO_HOSTS, "--ranks", str(SIZE)], signal.SIGSTOP)

    def test_killed_rank_across_two_hosts(self):
        self.assert_signal_ends_job([TWO_HOSTS, "--ranks", str(SIZE)], signal.SIGKILL)

    def test_two_hosts_leave_nothing(self):
        def traces():
            lists = (["ip", "netns", "list"], ["ip", "-brief", "link"], ["ls", "/dev/shm"], ["ls", "/tmp"])
            found = (subprocess.run(names, capture_output=True, text=True, check=True).stdout for names in lists)
            return [re.findall(r"copus-\d+-[ab]|cp\d+[ab]", names) for names in found]

        before = traces()
        with Job([TWO_HOSTS], "exchange") as job:
            processes = job.wait_for_ranks()
            if processes is None:
                self.skipTest(job.read(job.errors).strip())
            job.process.terminate()
            job.wait()
            self.assertTrue(all(map(has_ended, processes)))
        self.assertEqual(traces(), before)

    def test_error_of_one_rank_ends_all(self):
        self.assert_failure("throw", "^rank 1 has had enough$")

    def test_rank_that_does_not_come(self):
        self.assert_failure("late", r"^rank 1 \(pid \d+\) failed at step 3: kept rank \d waiting for 2 s;")

    def test_stalled_rank(self):
        self.assert_failure("stall", r"^rank 1 \(pid \d+\) failed at step 3: stalled: made no progress for 10 s")


if __name__ == "__main__":
    del sys.argv[1:3]
    unittest.main(verbosity=2)
