"""Tests jobs as processes: launcher, watchdogs and other launchers, with ranks that are killed, stopped or stall.

Usage: launcher_test.py PATH_TO_LAUNCH_TEST_PROGRAM [unittest options]. With COPUS_KILL_ROUNDS=100 the test that kills
and stops random ranks makes 100 rounds (6 without). COPUS_TORCHRUN names torchrun, which is not used for a build
without libtorch (environment COPUS_WITH_TORCH=0).
"""

import fcntl
import os
import pathlib
import pty
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import termios
import time
import unittest

from free_port import free_port

PROGRAM = str(pathlib.Path(sys.argv[1]).resolve())
TWO_HOSTS = str(pathlib.Path(__file__).resolve().parents[4] / "scripts" / "two-hosts")
SKIPPED = 77  # its exit code if it cannot make hosts
WITH_TORCH = os.environ.get("COPUS_WITH_TORCH", "1") == "1"
KILL_ROUNDS = int(os.environ.get("COPUS_KILL_ROUNDS", "6"))
TORCHRUN = os.environ.get("COPUS_TORCHRUN", "torchrun")
MPIRUN = shutil.which("mpirun")
TIMEOUT = 300  # seconds, far more than any job here takes
GONE_WITHIN = 60  # seconds; docs/design.md promises 5 on a machine with free cores: tests check results, not times
MARKER = "COPUS_LAUNCHER_TEST"
ENDLESS = ["--steps", "1000000000"]


def variables_of(pid):
    try:
        text = pathlib.Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    except OSError:  # it has just ended
        return {}
    return dict(line.split("=", 1) for line in text.split("\0") if "=" in line)


def is_stopped(pid):
    return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].startswith("T")


def shared_memory_files():
    """Without those of MPI, which other tests may be using."""
    return {name for name in os.listdir("/dev/shm") if not name.startswith(("vader", "sm_segment", "osc"))}


class Job:
    """A running job, whose processes are found by a variable in their environment."""

    count = 0

    def __init__(self, command, environment=(), **options):
        Job.count += 1
        self.marker = f"{os.getpid()}-{Job.count}"
        variables = {**os.environ, MARKER: self.marker, **dict(environment)}
        self.process = subprocess.Popen(command, env=variables, text=True, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, **options)

    def pids(self):
        pids = (int(name) for name in os.listdir("/proc") if name.isdigit())
        return [pid for pid in pids if variables_of(pid).get(MARKER) == self.marker]

    def ranks(self, variable="COPUS_RANK"):
        found = ((variables_of(pid).get(variable), pid) for pid in self.pids())
        return {int(rank): pid for rank, pid in found if rank is not None}

    def wait_for_ranks(self, count, variable="COPUS_RANK"):
        return wait_until(lambda: len(self.ranks(variable)) == count and self.ranks(variable))

    def finish(self):
        """Returns output and errors, once the process and all others that hold its pipes have ended."""
        return self.process.communicate(timeout=TIMEOUT)

    def kill(self):
        for pid in self.pids():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass


def wait_until(condition, seconds=TIMEOUT):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.01)
    raise AssertionError(f"did not happen within {seconds} s")


class LauncherTest(unittest.TestCase):
    def setUp(self):
        self.shared_memory = shared_memory_files()

    def start(self, *options, ranks=3, **more):
        job = Job([PROGRAM, "--ranks", str(ranks), *options], **more)
        self.addCleanup(job.kill)
        return job

    def run_job(self, *options, **more):
        job = self.start(*options, **more)
        output, errors = job.finish()
        self.assert_nothing_left(job)
        return job.process.returncode, output, errors

    def assert_nothing_left(self, job, seconds=0):
        wait_until(lambda: not job.pids(), seconds + 0.1)
        self.assertEqual(shared_memory_files() - self.shared_memory, set())

    def assert_one_message(self, errors, *says):
        messages = [line for line in errors.splitlines() if "copus: error:" in line]
        self.assertEqual(len(messages), 1, errors)
        for words in says:
            self.assertIn(words, messages[0])
        return messages[0]

    def run_failing(self, *options, says, **more):
        code, _, errors = self.run_job(*options, **more)
        self.assertEqual(code, 1, errors)
        return self.assert_one_message(errors, *says, "the job is ended"), errors

    @staticmethod
    def wait_for_words(job, words):
        """Reads stderr until it contains these words; finish() returns what comes after them."""
        source, text = job.process.stderr.fileno(), ""
        os.set_blocking(source, False)

        def have_come():
            nonlocal text
            try:
                text += os.read(source, 1 << 16).decode()
            except BlockingIOError:
                pass
            return words in text

        wait_until(have_come)
        os.set_blocking(source, True)
        return text

    @staticmethod
    def handles(pid, number):
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
        return int(re.search(r"^SigCgt:\s*(\w+)", status, re.MULTILINE).group(1), 16) >> (number - 1) & 1


class WholeJobs(LauncherTest):
    def test_jobs_run_to_the_end(self):
        for ranks in [1, 2, 5]:
            code, output, errors = self.run_job("--steps", "50", ranks=ranks)
            self.assertEqual(code, 0, errors)
            self.assertEqual(output.split("\n")[-2], "step 50")
            expected = ["done"] + [f"rank {rank}: done" for rank in range(1, ranks)]
            self.assertEqual(sorted(errors.splitlines()), expected)

    def test_the_exit_code_is_that_of_the_first_rank(self):
        self.assertEqual(self.run_job("--exit-code", "75")[0], 75)
        self.assertEqual(self.run_job("--exit-code", "130")[0], 130)

    def test_a_mistake_that_all_make_is_told_once(self):
        code, _, errors = self.run_job("--all-mistaken", "1", ranks=4)
        self.assertEqual(code, 2)
        self.assertEqual(errors, "copus: error: there is no such file\n")

    def test_a_mistake_that_one_makes_is_told_once(self):
        for rank in [0, 2]:
            code, _, errors = self.run_job("--mistaken", str(rank), "--at", "7")
            self.assertEqual(code, 2, errors)
            self.assertEqual(errors, "copus: error: the disk is full\n")
            code, _, errors = self.run_job("--mistake-before", str(rank))
            self.assertEqual(code, 2, errors)
            self.assertEqual(errors, "copus: error: there is no such file\n")

    def test_a_mistake_is_told_by_a_rank_that_takes_its_time_to_end(self):
        for rank in [0, 2]:
            code, _, errors = self.run_job("--mistaken", str(rank), "--at", "7", "--milliseconds-to-end", "2500")
            self.assertEqual(code, 2, errors)
            self.assertEqual(errors, "copus: error: the disk is full\n")


class Failures(LauncherTest):
    def test_a_killed_rank_is_named_with_its_place(self):
        for rank in [0, 2]:
            self.run_failing("--killed", str(rank), "--at", "7", says=[
                f"copus: error: rank {rank} (pid ", ") failed at step 7, rest: killed by signal 9 (Killed); the job"])

    def test_an_exit_code_of_its_own_is_named(self):
        self.run_failing("--exit-code", "3", says=["it exited with code 3"])

    def test_a_rank_that_exits_in_the_middle_is_named(self):
        self.run_failing("--gone", "1", "--at", "4", says=["rank 1 (pid", "step 4, rest", "code 0, in the middle"])

    def test_a_bug_in_one_rank_tells_both_the_bug_and_the_place(self):
        _, errors = self.run_failing("--broken", "1", "--at", "4", says=["rank 1 (pid", "step 4, rest", "its own"])
        self.assertIn("rank 1: copus: internal error:", errors)
        self.assertIn("broken on purpose", errors)

    def test_a_rank_that_stalls_is_named(self):
        message, _ = self.run_failing("--stalled", "1", "--at", "4", "--stall-seconds", "1",
                                      says=["rank 1 (pid", "failed at step 4, rest: stalled: made no progress for 1 s"])
        self.assertNotIn("killed", message)

    def test_a_rank_that_does_not_come_is_named(self):
        self.run_failing("--absent", "1", "--wait", "1", says=["rank 1 (pid"])

    def test_random_ranks_killed_or_stopped_at_random_moments(self):
        moments = random.Random(1)
        for round_number in range(KILL_ROUNDS):
            ranks = moments.choice([2, 3, 4])
            job = self.start(*ENDLESS, ranks=ranks)
            pids = job.wait_for_ranks(ranks)
            time.sleep(moments.choice([0, 0.01, moments.uniform(0, 1.5)]))  # during their start, and later
            rank = moments.randrange(ranks)
            kind = moments.choice([signal.SIGKILL, signal.SIGSTOP])
            with self.subTest(round=round_number, ranks=ranks, rank=rank, kind=kind):
                struck = time.monotonic()
                os.kill(pids[rank], kind)
                wait_until(lambda: not job.pids(), GONE_WITHIN)
                seconds = time.monotonic() - struck
                _, errors = job.finish()
                self.assertEqual(job.process.returncode, 1, errors)
                cause = "killed by signal 9 (Killed)" if kind == signal.SIGKILL else "stopped (SIGSTOP)"
                self.assert_one_message(errors, f"copus: error: rank {rank} (pid {pids[rank]}) failed", cause)
                self.assert_nothing_left(job)
                print(f"round {round_number}: {kind.name} of rank {rank} of {ranks}: gone after {seconds:.2f} s")

    def test_a_killed_launcher_takes_its_ranks_along(self):
        for delay in [0, 0.5]:
            job = self.start(*ENDLESS)
            job.wait_for_ranks(3)
            time.sleep(delay)
            job.process.kill()
            self.assert_nothing_left(job, GONE_WITHIN)
            job.finish()


class Signals(LauncherTest):
    def start_endless(self, *options, **more):
        job = self.start(*ENDLESS, *options, **more)
        job.process.stdout.readline()  # the ranks are running and have installed their handlers
        return job

    def test_sigterm_and_sigint_end_the_job_in_good_order(self):
        for number, code in [(signal.SIGTERM, 75), (signal.SIGINT, 130)]:
            job = self.start_endless()
            job.process.send_signal(number)
            _, errors = job.finish()
            self.assertEqual(job.process.returncode, code, errors)
            self.assertNotIn("copus:", errors)
            self.assert_nothing_left(job)

    def test_a_second_sigint_ends_the_job_at_once(self):
        job = self.start(*ENDLESS, "--milliseconds", "1000000")
        pids = job.wait_for_ranks(3)
        wait_until(lambda: all(self.handles(pid, signal.SIGINT) for pid in pids.values()))
        job.process.send_signal(signal.SIGINT)
        wait_until(lambda: not any(self.handles(pid, signal.SIGINT) for pid in pids.values()))  # they finish their step
        job.process.send_signal(signal.SIGINT)
        _, errors = job.finish()
        self.assertEqual(job.process.returncode, 130, errors)
        self.assertNotIn("copus:", errors)
        self.assert_nothing_left(job)

    def test_ctrl_c_in_a_terminal_reaches_the_ranks_once(self):
        terminal, end = pty.openpty()

        def own_terminal():
            os.setsid()
            fcntl.ioctl(end, termios.TIOCSCTTY, 0)

        job = self.start_endless(preexec_fn=own_terminal, stdin=end)
        groups = {os.getpgid(pid) for pid in job.ranks().values()}
        self.assertNotIn(os.getpgid(job.process.pid), groups, "the terminal would reach the ranks itself")
        os.write(terminal, b"\x03")
        _, errors = job.finish()
        self.assertEqual(job.process.returncode, 130, errors)
        self.assertNotIn("copus:", errors)
        self.assertIn("done", errors)
        self.assert_nothing_left(job)
        os.close(terminal)
        os.close(end)

    def test_a_stopped_launcher_is_told_of_and_the_ranks_go_on(self):
        job = self.start_endless("--milliseconds", "1")
        job.process.send_signal(signal.SIGSTOP)
        told = self.wait_for_words(job, f"(pid {job.process.pid}) is stopped (SIGSTOP); training goes on")
        for _ in range(20):
            self.assertTrue(job.process.stdout.readline())
        job.process.send_signal(signal.SIGCONT)
        job.process.send_signal(signal.SIGTERM)
        _, errors = job.finish()
        self.assertEqual(job.process.returncode, 75, errors)
        self.assertEqual((told + errors).count("copus:"), 1, told + errors)
        self.assert_nothing_left(job)

    def test_ctrl_z_holds_the_whole_job_for_as_long_as_it_takes(self):
        job = self.start_endless("--wait", "3")
        pids = job.ranks()
        job.process.send_signal(signal.SIGTSTP)
        wait_until(lambda: all(is_stopped(pid) for pid in [*pids.values(), job.process.pid]))
        time.sleep(4)  # longer than the allowed silence of a rank
        job.process.send_signal(signal.SIGCONT)
        wait_until(lambda: not any(is_stopped(pid) for pid in pids.values()))
        time.sleep(1)
        self.assertEqual(job.ranks(), pids)
        job.process.send_signal(signal.SIGTERM)
        _, errors = job.finish()
        self.assertEqual(job.process.returncode, 75, errors)
        self.assert_nothing_left(job)


@unittest.skipUnless(WITH_TORCH, "a build without libtorch has no rendezvous with other launchers")
class OtherLaunchers(LauncherTest):
    def torchrun(self, *options, ranks=3):
        if shutil.which(TORCHRUN) is None:
            self.skipTest(f"torchrun is not installed ({TORCHRUN})")
        job = Job([TORCHRUN, "--no-python", f"--nproc-per-node={ranks}", f"--master-port={free_port()}",
                   PROGRAM, *options])
        self.addCleanup(job.kill)
        return job

    def test_torchrun(self):
        job = self.torchrun("--steps", "50")
        output, errors = job.finish()
        self.assertEqual(job.process.returncode, 0, errors)
        self.assertIn("step 50", output)
        self.assertEqual(errors.count("done"), 3)
        self.assert_nothing_left(job, GONE_WITHIN)

    def test_torchrun_and_a_rank_that_is_killed_or_stopped(self):
        for kind, cause in [(signal.SIGKILL, "its process ended"), (signal.SIGSTOP, "stopped (SIGSTOP)")]:
            job = self.torchrun(*ENDLESS)
            job.process.stdout.readline()
            ranks = job.wait_for_ranks(3, "RANK")
            os.kill(ranks[1], kind)
            others = {ranks[0], ranks[2]}
            wait_until(lambda: not others & set(job.pids()), GONE_WITHIN)
            if kind == signal.SIGSTOP:
                os.kill(ranks[1], signal.SIGKILL)  # torchrun would take 30 s to end it
            _, errors = job.finish()
            self.assertNotEqual(job.process.returncode, 0)
            if kind == signal.SIGSTOP or "copus: error:" in errors:
                self.assert_one_message(errors, f"rank 1 (pid {ranks[1]}) failed at step", cause)
            else:  # torchrun noticed first, and told the others to end
                self.assertRegex(errors, rf"local_rank: 1 \(pid: {ranks[1]}\)")
            self.assert_nothing_left(job, GONE_WITHIN)

    def test_ranks_whose_torchrun_is_killed_end_in_order(self):
        job = self.torchrun(*ENDLESS)
        job.process.stdout.readline()
        job.process.kill()
        self.assert_nothing_left(job, GONE_WITHIN)
        _, errors = job.finish()
        self.assert_one_message(errors, f"(pid {job.process.pid}) is gone; the job is told to end")
        self.assertEqual(errors.count("done"), 3, errors)

    def test_ranks_whose_torchrun_is_killed_while_they_meet_end(self):
        job = self.torchrun("--absent", "1")
        ranks = job.wait_for_ranks(3, "RANK")
        wait_until(lambda: "memfd:copus" in pathlib.Path(f"/proc/{ranks[2]}/maps").read_text())
        job.process.kill()
        wait_until(lambda: not {ranks[0], ranks[2]} & set(job.pids()), GONE_WITHIN)
        os.kill(ranks[1], signal.SIGKILL)
        _, errors = job.finish()
        self.assert_one_message(errors, f"(pid {job.process.pid}) is gone; the job is told to end")

    def test_a_stopped_torchrun_is_told_of_and_the_ranks_go_on(self):
        job = self.torchrun(*ENDLESS, "--milliseconds", "1")
        job.process.stdout.readline()
        job.process.send_signal(signal.SIGSTOP)
        told = self.wait_for_words(job, f"(pid {job.process.pid}) is stopped (SIGSTOP); training goes on")
        for _ in range(20):
            self.assertTrue(job.process.stdout.readline())
        job.process.send_signal(signal.SIGCONT)
        job.process.send_signal(signal.SIGTERM)
        _, errors = job.finish()
        self.assertEqual((told + errors).count("copus:"), 1, told + errors)
        self.assert_nothing_left(job, GONE_WITHIN)

    def test_a_first_rank_that_is_stopped_at_its_start_is_named(self):
        job = self.torchrun("--stopped-before", "0", "--wait", "3")
        ranks = job.wait_for_ranks(3, "RANK")
        wait_until(lambda: not {ranks[1], ranks[2]} & set(job.pids()), 3 + GONE_WITHIN)
        os.kill(ranks[0], signal.SIGKILL)  # torchrun would take 30 s to end it
        _, errors = job.finish()
        self.assert_one_message(errors, "rank 0 failed at the start of the job: did not come within 3 s")
        self.assert_nothing_left(job, GONE_WITHIN)

    def test_mpirun(self):
        if MPIRUN is None:
            self.skipTest("mpirun is not installed")
        job = Job([MPIRUN, "--allow-run-as-root", "--oversubscribe", "-n", "3", PROGRAM, "--steps", "50"])
        self.addCleanup(job.kill)
        output, errors = job.finish()
        self.assertEqual(job.process.returncode, 0, errors)
        self.assertIn("step 50", output)
        self.assertEqual(errors.count("done"), 3)

    def srun(self, rank, *options):
        """Starts one of three tasks with srun's variables, but without SLURM."""
        variables = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_ID": self.port, "SLURM_PROCID": str(rank),
                     "SLURM_LOCALID": str(rank), "SLURM_STEP_NUM_TASKS": "3", "SLURM_STEP_TASKS_PER_NODE": "3",
                     "SLURM_NODEID": "0", "MASTER_PORT": self.port}
        job = Job([PROGRAM, *options], variables)
        self.addCleanup(job.kill)
        return job

    def test_tasks_of_slurm_meet_without_anybody_s_store(self):
        self.port = free_port()
        jobs = [self.srun(rank, "--steps", "50") for rank in [2, 1, 0]]
        for job in jobs:
            _, errors = job.finish()
            self.assertEqual(job.process.returncode, 0, errors)

    def test_a_task_of_slurm_that_does_not_come_is_named(self):
        for waits, says in [([3, 30], "rank 1 failed at the start of the job: did not come within 3 s"),
                            ([30, 3], "rank 1 failed: did not come to an all-reduce of ranks 0, 1, 2, for which rank 2 "
                                      "waited 3 s; nor did rank 0")]:
            self.port = free_port()
            jobs = [self.srun(rank, "--wait", str(wait)) for rank, wait in zip([0, 2], waits)]
            errors = "".join(job.finish()[1] for job in jobs)  # the rank whose time is up first reports it for both
            self.assertEqual([job.process.returncode for job in jobs], [1, 1], errors)
            self.assert_one_message(errors, says)

    def test_a_first_task_of_slurm_that_does_not_answer_is_named(self):
        """It may be stopped. The system then still accepts connections at its port, but nobody answers."""
        for listens in [False, True]:
            self.port = free_port()
            with socket.socket() as door:
                if listens:
                    door.bind(("127.0.0.1", int(self.port)))
                    door.listen()
                jobs = [self.srun(rank, "--wait", "2") for rank in [1, 2]]
                errors = "".join(job.finish()[1] for job in jobs)
            self.assertEqual([job.process.returncode for job in jobs], [1, 1], errors)
            self.assert_one_message(errors, "rank 0 failed at the start of the job: nobody answered at "
                                            f"127.0.0.1:{self.port}")

    def test_a_task_of_slurm_that_is_killed_while_others_still_come_is_named(self):
        self.port = free_port()
        jobs = [self.srun(rank) for rank in [0, 2]]
        pid = jobs[1].process.pid
        wait_until(lambda: "memfd:copus" in pathlib.Path(f"/proc/{pid}/maps").read_text())
        jobs[0].process.kill()
        jobs[1].process.wait(GONE_WITHIN)
        _, errors = jobs[1].finish()
        self.assertEqual(jobs[1].process.returncode, 1)
        self.assert_one_message(errors, f"rank 0 (pid {jobs[0].process.pid}) failed: its process ended")
        jobs[0].finish()


@unittest.skipUnless(WITH_TORCH, "a build without libtorch has no rendezvous with other launchers")
class TwoHosts(LauncherTest):
    """Ranks that torchrun starts on two machines, without MPI."""

    RANKS = 4

    def start_on_two_hosts(self, *options):
        if shutil.which(TORCHRUN) is None:
            self.skipTest(f"torchrun is not installed ({TORCHRUN})")
        job = Job([TWO_HOSTS, "--ranks", str(self.RANKS), "--torchrun", TORCHRUN, PROGRAM, *options])
        self.addCleanup(job.kill)
        self.addCleanup(self.take_down, job)
        return job

    @staticmethod
    def take_down(job):
        """Ends the job in good order, and with it the hosts."""
        if job.process.poll() is None:
            job.process.terminate()
            job.process.wait(TIMEOUT)

    def start_endless(self):
        job = self.start_on_two_hosts(*ENDLESS)
        if not job.process.stdout.readline():
            self.finish(job)
            self.fail("the job did not start")
        return job, job.ranks("RANK")

    def finish(self, job):
        output, errors = job.finish()
        if job.process.returncode == SKIPPED:
            self.skipTest(errors.strip())
        return output, errors

    def assert_one_message_on_each_host(self, job, *causes):
        """Expects one message of ours on each host, whatever else the launchers print."""
        _, errors = self.finish(job)
        messages = [line for line in errors.splitlines() if "copus: error:" in line]
        self.assertEqual(len(messages), 2, errors)
        for message in messages:
            self.assertTrue(any(re.search(cause, message) for cause in causes), errors)
        self.assertNotEqual(job.process.returncode, 0)
        self.assert_nothing_left(job, GONE_WITHIN)

    def test_a_job_runs_to_its_end(self):
        job = self.start_on_two_hosts("--steps", "50")
        output, errors = self.finish(job)
        self.assertEqual(job.process.returncode, 0, errors)
        self.assertIn("step 50", output)
        self.assertEqual(errors.count("done"), self.RANKS)
        self.assertNotIn("copus:", errors)
        self.assert_nothing_left(job, GONE_WITHIN)

    def test_a_rank_that_is_killed_or_stopped(self):
        for rank, kind, cause in [(3, signal.SIGKILL, "its process ended"), (0, signal.SIGSTOP, "no heartbeat for 3 s")]:
            job, ranks = self.start_endless()
            os.kill(ranks[rank], kind)
            others = {pid for other, pid in ranks.items() if other != rank}
            wait_until(lambda: not others & set(job.pids()), GONE_WITHIN)
            if kind == signal.SIGSTOP:
                os.kill(ranks[rank], signal.SIGKILL)  # torchrun would take 30 s to end it
            # The place is missing if no heartbeat has carried it yet.
            failed = rf"rank {rank} \(pid {ranks[rank]}\) failed( at step \d+, \S+)?: {cause}"
            self.assert_one_message_on_each_host(job, failed)

    def test_a_cable_that_is_cut(self):
        job, ranks = self.start_endless()
        host = subprocess.run(["ip", "netns", "identify", str(ranks[3])], capture_output=True, text=True,
                              check=True).stdout.strip()
        links = subprocess.run(["ip", "-n", host, "-brief", "link"], capture_output=True, text=True, check=True).stdout
        subprocess.run(["ip", "-n", host, "link", "set", re.search(r"cp\d+b", links)[0], "down"], check=True)
        wait_until(lambda: not set(ranks.values()) & set(job.pids()), GONE_WITHIN)
        job.process.terminate()  # torchrun would wait for the other host, which it cannot reach
        # Each host names a rank of the other host.
        self.assert_one_message_on_each_host(job, r"rank [023] .*no heartbeat for 3 s")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
