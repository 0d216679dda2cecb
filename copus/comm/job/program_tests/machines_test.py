"""Tests jobs of several machines whose ranks come and go. Each "machine" is a separate launcher on this machine.

Usage: machines_test.py PATH_TO_LAUNCH_TEST_PROGRAM [unittest options]. With COPUS_KILL_ROUNDS=100 the test that injects
faults at random moments makes 100 rounds (6 without). Launchers and ranks meet in a folder, and in a build with
libtorch (COPUS_WITH_TORCH=1) also at a store of the first launcher.
"""

import collections
import os
import pathlib
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from free_port import free_port
from launcher_test import ENDLESS, GONE_WITHIN, KILL_ROUNDS, PROGRAM, WITH_TORCH, LauncherTest, is_stopped, wait_until
from healing_test import HealingJob
from two_hosts import TwoHosts


class Machine(HealingJob):
    """One launcher and its ranks."""

    def __init__(self, number, variables, *options, ranks, milliseconds, program=(PROGRAM,)):
        self.number = number
        super().__init__(*options, ranks=ranks, milliseconds=milliseconds,
                         environment={"TEST_MACHINE": str(number), **variables}, program=program)

        self.finished = None

    def finish(self):
        self.finished = self.finished or super().finish()
        return self.finished

    def launcher_is_alive(self):
        return self.process.poll() is None


class MachinesJob:
    """The launchers of a job."""

    def __init__(self, test, *options, machines=2, ranks=2, milliseconds=2, variables=(), meets_in_folder=True,
                 program_of=lambda machine: [PROGRAM]):
        variables = dict(variables)
        if meets_in_folder:
            folder = tempfile.TemporaryDirectory()
            test.addCleanup(folder.cleanup)
            variables["TEST_MEETING"] = folder.name
        self.machines = []
        for number in range(machines):
            machine = Machine(number, variables, "--machines", str(machines), *options, ranks=ranks,
                              milliseconds=milliseconds, program=program_of(number))
            test.addCleanup(machine.kill)
            self.machines.append(machine)

    def __getitem__(self, number):
        return self.machines[number]

    def processes(self):
        return {number: pid for machine in self.machines for number, pid in machine.processes().items()}

    def epochs(self):
        """Collected from the output of all ranks, because any of them may be rank 0."""
        found = {}
        for machine in self.machines:
            for number, members in re.findall(r"^epoch (\d+) at \S+ of ([\d,]+)", machine.read(), re.MULTILINE):
                assert int(number) not in found, (number, found)
                found[int(number)] = [int(member) for member in members.split(",")]
        return [found[number] for number in sorted(found)]

    def wait_for_epoch(self, members):
        wait_until(lambda: self.epochs()[-1:] == [members], 120)

    def wait_for_a_step(self):
        seen = [len(machine.read()) for machine in self.machines]
        wait_until(lambda: any("\nstep " in machine.read()[before:] for machine, before in zip(self.machines, seen)))

    def output(self):
        return "".join(machine.read() for machine in self.machines)


def doors_of(pid):
    """The addresses where a process listens: (address, port), with the address in the kernel's hexadecimal form."""
    try:
        open_files = {os.readlink(file.path) for file in os.scandir(f"/proc/{pid}/fd")}
        tables = [pathlib.Path(f"/proc/{pid}/net/{table}").read_text() for table in ["tcp", "tcp6"]]
    except OSError:  # it has just ended
        return set()
    found = set()
    for line in "\n".join(tables).splitlines():
        fields = line.split()
        if len(fields) > 9 and fields[3] == "0A" and f"socket:[{fields[9]}]" in open_files:
            address, port = fields[1].split(":")
            found.add((address, int(port, 16)))
    return found


class Strangers(threading.Thread):
    """Keeps connecting to all doors of a job until stopped, and sends nothing, half of a greeting, or garbage."""

    MOST = 800  # connections at the same time

    def __init__(self, job, seed):
        super().__init__(daemon=True)
        self.job, self.chance = job, random.Random(seed)
        self.done, self.came, self.doors = threading.Event(), 0, set()

    def words(self):
        greeting = b"copus 1 " + bytes(self.chance.choices(range(97, 113), k=32)) + bytes(8)
        garbage = self.chance.randbytes(self.chance.randrange(1, 4000))
        return self.chance.choice([b"", b"", greeting[:self.chance.randrange(1, 48)], greeting, garbage])

    def run(self):
        crowd, looked = collections.deque(), 0
        while not self.done.is_set():
            if time.monotonic() > looked + 0.2:
                pids = [pid for machine in self.job.machines for pid in [machine.process.pid, *machine.ranks().values()]]
                self.doors, looked = {door for pid in pids for door in doors_of(pid)}, time.monotonic()
            for _, port in self.doors:
                stranger = socket.socket()
                stranger.setblocking(False)
                stranger.connect_ex(("127.0.0.1", port))
                try:
                    stranger.send(self.words())
                except OSError:  # the door refused it
                    pass
                crowd.append(stranger)
                self.came += 1
            while len(crowd) > self.MOST:
                crowd.popleft().close()
            time.sleep(0.001)
        for stranger in crowd:
            stranger.close()


def still_runs(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as stat:
            return stat.read().rsplit(") ", 1)[1][0] not in "ZX"
    except OSError:
        return False


def takes_signals(pid):
    """Whether a launcher has come so far that SIGTERM does not kill it."""
    with open(f"/proc/{pid}/status", encoding="utf-8") as status:
        blocked = int(re.search(r"^SigBlk:\s*(\w+)", status.read(), re.MULTILINE)[1], 16)
    return blocked >> (signal.SIGTERM - 1) & 1 == 1


class MachinesTest(LauncherTest):
    def start(self, *options, **more):
        return MachinesJob(self, *options, **more)

    def start_endless(self, *options, **more):
        job = self.start(*ENDLESS, *options, **more)
        job.wait_for_a_step()
        return job

    def finish(self, job, *codes):
        """Waits for the end of all launchers, each with its exit code or one of several. Returns each one's stderr."""
        all_errors = []
        for machine, code in zip(job.machines, codes, strict=True):
            output, errors = machine.finish()
            expected = code if isinstance(code, tuple) else (code,)
            self.assertIn(machine.process.returncode, expected, f"machine {machine.number}: {output[-2000:]}{errors}")
            all_errors.append(errors)
        for machine in job.machines:
            self.assert_nothing_left(machine)
        return all_errors

    def stop(self, job, *codes):
        """Ends the job in good order."""
        job[0].process.send_signal(signal.SIGTERM)
        return self.finish(job, *(codes or [75] * len(job.machines)))

    def assert_healed(self, errors, *failures):
        lines = [line for line in errors.splitlines() if "copus:" in line]
        self.assertEqual(len(lines), len(failures), errors)
        for line, failure in zip(sorted(lines), sorted(failures)):
            self.assertRegex(line, "^copus: " + failure)


class WholeJobs(MachinesTest):
    def test_without_a_failure_it_is_a_job_like_others(self):
        for machines, ranks in [(2, 2), (3, 1)]:
            job = self.start("--steps", "50", machines=machines, ranks=ranks)
            self.assertEqual(self.finish(job, *[0] * machines), [""] * machines)
            self.assertEqual(job.epochs(), [list(range(machines * ranks))])
            self.assertIn("step 50", job[0].read())

    def test_the_clock_goes_on(self):
        job = self.start("--steps", "150", "--killed", "0", "--at", "50")
        self.finish(job, 0, 0)
        times = [float(at) for at in re.findall(r"^epoch \d+ at (\S+)", job.output(), re.MULTILINE)]
        self.assertEqual(times, sorted(times))
        self.assertGreater(times[-1], 49 * 0.002, "49 steps took as long at least")

    @unittest.skipUnless(WITH_TORCH, "this build has no store")
    def test_they_meet_at_a_store(self):
        job = self.start_endless("--port", free_port(), meets_in_folder=False)
        os.kill(job.processes()[3], signal.SIGKILL)
        job.wait_for_epoch([0, 1, 2, 4])
        self.stop(job)

    def test_nobody_listens_but_at_the_address_where_they_meet(self):
        port = free_port()
        options = {"meets_in_folder": not WITH_TORCH}
        job = self.start_endless("--port", port, **options)
        doors = set()
        for pid in [job[0].process.pid, *job.processes().values()]:
            doors |= doors_of(pid)
        self.assertTrue(doors)
        self.assertEqual({address for address, _ in doors}, {"0100007F"}, "127.0.0.1")
        self.assertEqual(int(port) in {its_port for _, its_port in doors}, WITH_TORCH)
        self.stop(job)

    def test_strangers_at_the_doors_harm_nothing(self):
        files_allowed = 256
        job = self.start(*ENDLESS, "--every", "1",
                         program_of=lambda machine: ["prlimit", f"--nofile={files_allowed}", PROGRAM])
        strangers = Strangers(job, seed=7)
        strangers.start()
        try:
            job.wait_for_a_step()
            wait_until(lambda: strangers.came > 2000)
            files = {pid: len(os.listdir(f"/proc/{pid}/fd")) for pid in job.processes().values()}
            job.wait_for_a_step()
            os.kill(job.processes()[3], signal.SIGKILL)  # the others meet again, while strangers connect
            job.wait_for_epoch([0, 1, 2, 4])
            job.wait_for_a_step()
        finally:
            strangers.done.set()
            strangers.join()
        self.assertLess(max(files.values()), files_allowed - 64, "strangers may take a quarter of them")
        errors = self.stop(job)
        self.assert_healed(errors[0], r"rank 3 \(pid \d+\) failed.*: killed by signal 9 \(Killed\); the job goes on")

    def test_launchers_that_do_not_agree_are_a_mistake(self):
        with tempfile.TemporaryDirectory() as folder:
            machines = [Machine(number, {"TEST_MEETING": folder}, "--machines", "2", ranks=ranks, milliseconds=1)
                        for number, ranks in [(0, 2), (1, 3)]]
            for machine in machines:
                self.addCleanup(machine.kill)
            errors = [machine.finish()[1] for machine in machines]
            self.assertEqual([machine.process.returncode for machine in machines], [2, 2])
            self.assert_one_message(errors[0], "was started for 2 machines with 3 ranks each")
            self.assertEqual(errors[1], "")

    def test_no_place_to_meet_is_a_mistake(self):
        for variables, port in [({"TEST_ADDRESS": ""}, "1"), ({}, "0")]:
            job = self.start("--port", port, variables=variables)
            for errors in self.finish(job, 2, 2):
                self.assert_one_message(errors, "2 of 4 are on this one", "set MASTER_ADDR", "MASTER_PORT")


class Failures(MachinesTest):
    def test_any_rank_may_be_killed_and_is_replaced_on_its_machine(self):
        for rank in range(4):
            job = self.start_endless("--every", "1")
            pids = job.processes()
            os.kill(pids[rank], signal.SIGKILL)
            others = [process for process in range(4) if process != rank]
            job.wait_for_epoch(others + [4])
            job.wait_for_a_step()
            self.assertIn(4, job[rank // 2].processes())
            self.assertEqual(job.epochs(), [[0, 1, 2, 3], others, others + [4]])
            errors = self.stop(job)
            # Its neighbours know its place if they have received a heartbeat with it.
            self.assert_healed(errors[0], rf"rank {rank} \(pid {pids[rank]}\) failed(?: at step \d+)?: "
                                          r"killed by signal 9 \(Killed\); the job goes on with 3 ranks$")
            self.assertEqual(errors[1], "")

    def test_a_stopped_rank_is_named_and_ended(self):
        for rank in [0, 3]:
            job = self.start_endless("--replaces", "0")
            pids = job.processes()
            os.kill(pids[rank], signal.SIGSTOP)
            job.wait_for_epoch([process for process in range(4) if process != rank])
            self.assertNotIn(pids[rank], job.processes().values())
            errors = self.stop(job)
            self.assert_healed(errors[0], rf"rank {rank} \(pid {pids[rank]}\) failed.*: stopped \(SIGSTOP\);")

    def test_an_error_of_its_own_is_told_and_healed(self):
        job = self.start("--steps", "50", "--broken", "2", "--at", "9")
        errors = self.finish(job, 0, 0)
        self.assertIn("rank 2: copus: internal error:", errors[1])
        self.assertIn("failed at step 9: it ended with an error of its own; the job goes on with 3 ranks", errors[0])

    def test_a_rank_that_does_not_leave_the_epoch_is_ended(self):
        job = self.start_endless("--dawdles", "2", "--replaces", "0")
        os.kill(job.processes()[0], signal.SIGKILL)
        job.wait_for_epoch([1, 3])
        errors = self.stop(job)
        self.assert_healed(errors[0], r"rank 0 \(pid \d+\) failed.*: killed by signal 9",
                           r"rank 2 \(pid \d+\) failed.*it did not leave the epoch in time;.* with 2 ranks$")

    def test_one_is_killed_while_the_others_meet(self):
        for delay in [0, 0.01, 0.02, 0.03, 0.05, 0.1]:
            job = self.start_endless("--replaces", "0")
            pids = job.processes()
            os.kill(pids[3], signal.SIGKILL)
            time.sleep(delay)
            os.kill(pids[0], signal.SIGKILL)
            job.wait_for_epoch([1, 2])
            errors = self.stop(job)
            self.assert_healed(errors[0], rf"rank 0 \(pid {pids[0]}\).* killed", rf"rank \d \(pid {pids[3]}\).* killed")

    def test_a_mistake_of_the_user_ends_the_job_with_one_message(self):
        for options in [["--mistaken", "0", "--at", "7"], ["--mistaken", "3", "--at", "7"], ["--mistake-before", "2"]]:
            errors = self.finish(self.start(*options, "--steps", "1000"), 2, 2)
            self.assertIn(errors[0], ["copus: error: the disk is full\n", "copus: error: there is no such file\n"])
            self.assertEqual(errors[1], "")

    def test_nobody_left(self):
        job = self.start_endless()
        for pid in job.processes().values():
            os.kill(pid, signal.SIGKILL)
        errors = self.finish(job, 1, 1)
        self.assert_one_message(errors[0], "killed by signal 9 (Killed); the job is ended")
        self.assertEqual(errors[1], "")

    def test_random_processes_struck_at_random_moments(self):
        moments = random.Random(3)
        job = self.start_endless()
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
                wait_until(lambda: len(job.epochs()[-1]) == 4 and not set(lost) & set(job.epochs()[-1]), 120)
        errors = self.stop(job)
        told = re.findall("the job goes on with|ended before it took part", errors[0])
        self.assertEqual(len(told), len(lost), errors[0])


    def test_a_job_that_has_lost_a_machine_does_not_begin_again(self):
        job = self.start_endless("--restarts", "1", "--begins", "0")
        job[1].process.kill()
        wait_until(lambda: job.epochs()[-1] == [0, 1])
        for pid in job[0].ranks().values():
            os.kill(pid, signal.SIGKILL)
        job[1].finish()
        _, errors = job[0].finish()
        self.assertEqual(job[0].process.returncode, 1, errors)
        self.assertIn("the job is ended", errors)

    def test_a_job_whose_ranks_are_all_killed_before_it_has_begun_begins_again(self):
        job = self.start("--steps", "20", "--restarts", "1", "--begins", "0")
        for pid in wait_until(lambda: len(job.processes()) == 4 and job.processes()).values():
            os.kill(pid, signal.SIGKILL)
        errors = self.finish(job, 0, 0)
        self.assertEqual(job.epochs()[-1], [0, 1, 2, 3])
        self.assertEqual(errors[0].count("training had not begun, and the ranks are started again"), 1, errors[0])

    def test_it_begins_again_too_where_the_launchers_have_killed_one_that_was_stopped(self):
        job = self.start_endless("--restarts", "1", "--begins", "0", "--replaces", "0")
        pids = job.processes()
        os.kill(pids[3], signal.SIGSTOP)
        job.wait_for_epoch([0, 1, 2])
        for process in (0, 1, 2):
            os.kill(pids[process], signal.SIGKILL)
        wait_until(lambda: job.output().count("epoch 0 at ") == 2 or not job[0].launcher_is_alive())
        errors = self.stop(job)
        self.assertEqual(errors[0].count("training had not begun, and the ranks are started again"), 1, errors[0])

    def test_an_error_of_its_own_before_the_job_has_begun_ends_it(self):
        errors = self.finish(self.start("--broken", "2", "--at", "3", "--begins", "0", "--restarts", "3"), 1, 1)
        self.assertIn("rank 2: copus: internal error:", errors[1])
        self.assert_one_message(errors[0], "rank 2 ", "the job is ended")
        self.assertNotIn("started again", errors[0])


class Newcomers(MachinesTest):
    def test_one_that_dies_at_its_start_is_tried_again(self):
        job = self.start_endless("--killed", "3", "--at", "7", "--newcomers-die", "1")
        told = self.wait_for_words(job[0], "another one is started in 1 s")
        errors = self.stop(job)
        errors[0] = told + errors[0]
        self.assertEqual(job.epochs(), [[0, 1, 2, 3], [0, 1, 2]])
        ended = r"process {} \(pid \d+\) ended before it took part: killed by signal 9 \(Killed\){}$"
        self.assert_healed(errors[0], "rank 3 .*; the job goes on with 3 ranks", ended.format(4, ""),
                           ended.format(5, "; another one is started in 0.5 s"),
                           ended.format(6, "; another one is started in 1 s"))

    def test_spares_wait_and_take_part_when_they_are_needed(self):
        job = self.start_endless("--used", "3")
        pids = job.processes()
        os.kill(pids[3], signal.SIGKILL)
        job.wait_for_epoch([0, 1, 2, 4])
        os.kill(pids[0], signal.SIGKILL)
        job.wait_for_epoch([1, 2, 4, 5])
        job.wait_for_a_step()
        stopped = time.monotonic()
        self.assert_healed(self.stop(job)[0], r"rank 3 .*failed.*: killed by signal 9", r"rank 0 .*killed by signal 9")
        self.assertLess(time.monotonic() - stopped, 120, "spares do not keep the others waiting at the end")
        self.assertIn("process 5 goes", job.output())

    def test_who_asks_to_leave_is_let_go_and_not_replaced(self):
        for process in [0, 3]:
            job = self.start_endless()
            os.kill(job.processes()[process], signal.SIGTERM)
            others = [other for other in range(4) if other != process]
            job.wait_for_epoch(others)
            wait_until(lambda: sorted(job.processes()) == others)
            job.wait_for_a_step()
            self.assertEqual(self.stop(job), ["", ""])
            self.assertEqual(job.epochs()[-1], others)


class Machines(MachinesTest):
    def gone(self, machine, rank, cause):
        who = rf"rank {rank} \(pid \d+\) failed.*: its machine {machine} \(host \S+\)"
        return rf"{who} is gone: {cause}; the job goes on"

    def test_a_machine_whose_launcher_dies_is_gone(self):
        job = self.start_endless(machines=3)
        job[1].process.kill()
        self.assert_nothing_left(job[1], GONE_WITHIN)
        job.wait_for_epoch([0, 1, 4, 5])
        job.wait_for_a_step()
        os.kill(job.processes()[4], signal.SIGKILL)  # on a machine that remains
        job.wait_for_epoch([0, 1, 5, 6])
        errors = self.stop(job, 75, -signal.SIGKILL, 75)
        broke = "the connection to its launcher broke"
        self.assertEqual(len(re.findall(self.gone(1, r"\d", broke), errors[0])), 2, errors[0])
        self.assertEqual(len(errors[0].splitlines()), 3, errors[0])

    def test_one_rank_may_be_left(self):
        job = self.start_endless(ranks=1)
        job[1].process.kill()
        job.wait_for_epoch([0])
        job.wait_for_a_step()
        self.stop(job, 75, -signal.SIGKILL)

    def test_a_machine_whose_launcher_is_stopped_is_fenced(self):
        job = self.start_endless()
        pids = job[1].processes()
        job[1].process.send_signal(signal.SIGSTOP)
        job.wait_for_epoch([0, 1])
        running = [pid for pid in pids.values() if still_runs(pid)]
        self.assertEqual(running, [], "they end before the others go on without them")
        job.wait_for_a_step()
        job[1].process.send_signal(signal.SIGCONT)
        errors = self.stop(job, 75, 1)
        self.assertEqual(len(re.findall(self.gone(1, r"\d", "its launcher was not heard for 4 s"), errors[0])), 2,
                         errors[0])
        self.assert_one_message(errors[1], "machine 1 has lost machine 0", "--resume")

    def test_sigterm_at_another_machine_makes_it_leave(self):
        for number in [signal.SIGTERM, signal.SIGINT]:
            job = self.start_endless()
            job[1].process.send_signal(number)
            job.wait_for_epoch([0, 1])
            wait_until(lambda: not job[1].launcher_is_alive())
            self.assert_nothing_left(job[1])
            job.wait_for_a_step()
            errors = self.stop(job, 75, 0)
            self.assertEqual(errors, ["", ""])
            self.assertIn("process 2 goes", job.output())
            self.assertIn("process 3 goes", job.output())

    def test_sigterm_and_sigint_at_the_first_machine_end_the_job_in_good_order(self):
        for number, code in [(signal.SIGTERM, 75), (signal.SIGINT, 130)]:
            job = self.start_endless(milliseconds=20)
            job[0].process.send_signal(number)
            self.assertEqual(self.finish(job, code, code), ["", ""])
            self.assertEqual(len(job.epochs()), 1)

    def test_a_signal_at_all_machines_ends_the_job_in_good_order(self):
        for number, code in [(signal.SIGTERM, 75), (signal.SIGINT, 130)]:
            for first in [0, 1]:
                job = self.start_endless("--every", "1", milliseconds=100)  # both signals come in one step
                job[first].process.send_signal(number)
                job[1 - first].process.send_signal(number)
                # If machine 1 got the signal much earlier, it has left the job.
                errors = self.finish(job, code, (0, code) if first == 1 else code)
                self.assertEqual(errors, ["", ""])
                ends = "ends as it was told|goes" if first == 1 else "ends as it was told"
                ended = re.findall(rf"^process (\d) (?:{ends})$", job.output(), re.MULTILINE)
                self.assertEqual(sorted(ended), ["0", "1", "2", "3"], f"{number} killed some: {job.output()[-2000:]}")

    def test_all_end_when_the_first_machine_is_gone(self):
        job = self.start_endless(machines=3, ranks=1)
        job[0].process.kill()
        errors = self.finish(job, -signal.SIGKILL, 1, 1)
        for machine in [1, 2]:
            self.assert_one_message(errors[machine], f"machine {machine} has lost machine 0", "--resume")

    def test_all_end_when_the_first_launcher_is_stopped(self):
        job = self.start_endless()
        pids = job[0].processes().values()  # an ending process has no environment, so it is not found later
        self.assertEqual(len(pids), 2)
        job[0].process.send_signal(signal.SIGSTOP)
        _, errors = job[1].finish()
        self.assertEqual(job[1].process.returncode, 1)
        self.assert_one_message(errors, "machine 1 has lost machine 0", "it was not heard for 2 s", "--resume")
        self.assertTrue(is_stopped(job[0].process.pid))
        wait_until(lambda: not any(still_runs(pid) for pid in pids), GONE_WITHIN)
        job[0].process.send_signal(signal.SIGCONT)
        errors = self.finish(job, 1, 1)
        self.assert_one_message(errors[0], "the job is ended")

    def test_told_to_end_before_all_have_come(self):
        for machine in [0, 1]:
            with tempfile.TemporaryDirectory() as folder:
                alone = Machine(machine, {"TEST_MEETING": folder}, "--machines", "2", ranks=1, milliseconds=1)
                self.addCleanup(alone.kill)
                wait_until(lambda: takes_signals(alone.process.pid))
                alone.process.send_signal(signal.SIGTERM)
                alone.finish()
                self.assertEqual(alone.process.returncode, 75)

    @unittest.skipUnless(WITH_TORCH, "this build has no store")
    def test_told_to_end_while_machine_0_is_not_there_or_does_not_answer(self):
        for number, code in [(signal.SIGTERM, 75), (signal.SIGINT, 130)]:
            for listens in [False, True]:
                port = free_port()
                with socket.socket() as door:
                    if listens:
                        door.bind(("127.0.0.1", int(port)))
                        door.listen()
                    alone = Machine(1, {}, "--machines", "2", "--port", port, ranks=1, milliseconds=1)
                    self.addCleanup(alone.kill)
                    wait_until(lambda: takes_signals(alone.process.pid))
                    time.sleep(0.5)  # by now it waits for the store
                    told = time.monotonic()
                    alone.process.send_signal(number)
                    _, errors = alone.finish()
                    self.assertLess(time.monotonic() - told, GONE_WITHIN)
                    self.assertEqual((alone.process.returncode, errors), (code, ""))


class Hosts(MachinesTest):
    """Machines as network namespaces, joined by a cable that can be pulled."""

    def setUp(self):
        super().setUp()
        self.hosts = TwoHosts(self)

    def start_on_hosts(self, *options):
        return self.start_endless(*options, variables={"TEST_ADDRESS": self.hosts.addresses[0]},
                                  program_of=lambda machine: ["ip", "netns", "exec", self.hosts.names[machine], PROGRAM])

    def test_a_machine_whose_cable_is_pulled_ends_before_the_other_goes_on(self):
        job = self.start_on_hosts()
        pids = job[1].processes()
        self.hosts.set_cable(1, "down")
        job.wait_for_epoch([0, 1])
        self.assertEqual([pid for pid in pids.values() if still_runs(pid)], [])
        job.wait_for_a_step()
        errors = self.stop(job, 75, 1)
        self.assertEqual(errors[0].count("is gone: its launcher was not heard for 4 s; the job goes on"), 2, errors[0])
        self.assert_one_message(errors[1], "machine 1 has lost machine 0", "it was not heard for 2 s", "--resume")

    def pull_for_a_moment(self):
        """Returns the seconds without a cable."""
        pulled = time.monotonic()
        self.hosts.set_cable(1, "down")
        time.sleep(0.1)
        self.hosts.set_cable(1, "up")
        return time.monotonic() - pulled

    def test_a_cable_that_comes_back_soon_costs_nothing(self):
        for _ in range(10):
            job = self.start_on_hosts()
            if self.pull_for_a_moment() < 0.3:  # TCP resends at 0.2, 0.6 and 1.4 s; after 2 s a machine ends
                job.wait_for_a_step()
                self.assertEqual(self.stop(job), ["", ""])
                self.assertEqual(len(job.epochs()), 1)
                return
            for machine in job.machines:
                machine.kill()
                machine.finish()
        self.skipTest("this machine has too much to do to pull a cable for a moment alone")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
