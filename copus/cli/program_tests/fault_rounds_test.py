"""Injects faults, in rounds, into training jobs that do not heal. A fault hits a rank, the launcher, the run directory
or its disk, during the start, training, an evaluation, a checkpoint or a re-layout, under Copus' own launcher and under
torchrun. In each round exactly one message has to name the cause, no process may be left after five seconds, and the
run is then resumed: its losses must equal those of an undisturbed run bitwise.

Usage: fault_rounds_test.py PATH_TO_COPUS [--rounds N] [--seed S] [--json FILE] [--launchers own,torchrun], of a build
with libtorch. 200 rounds inject every fault at least once, and take about 20 minutes on two cores.
"""

import argparse
import collections
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
import tempfile
import time
from typing import Callable, NamedTuple, Optional

from free_port import free_port
from program_test_support import COPUS, RUN, TIMEOUT, TORCHRUN
from rank_processes import Places, is_gone, ranks_of

ROUNDS_IN_CTEST = 6
RANKS = 2
STEPS = 60
SWITCH_EVERY, EVALUATE_EVERY, CHECKPOINT_EVERY = 5, 6, 7
GONE_WITHIN = 5  # seconds from a fault to the end of all ranks, as docs/design.md promises
START_WAIT = 4  # seconds that ranks wait for one that was stopped before it joined
STOPPED = signal.SIGSTOP

MODEL = """
[model]
architecture = "llama"
vocab_size = 256
hidden_size = 64
intermediate_size = 128
num_hidden_layers = 4
num_attention_heads = 4
num_key_value_heads = 4
[parallel]
data_parallel = 2
[heal]
enabled = false
[cluster]
ranks_per_node = 2
within_node = { latency_microseconds = 5.0, gigabytes_per_second = 4.0 }
between_nodes = { latency_microseconds = 5.0, gigabytes_per_second = 4.0 }
device = { matmul_teraflops = 0.1 }
[adapt]
policy = "script"
file = "script.jsonl"
zero_stages = [0, 1]
max_tensor_parallel = 2
"""
# How a rank names its current place, by the phase of the run.
PHASES = {"start": None, "training": "", "evaluation": "evaluation", "checkpoint": "checkpoint", "switch": "switching"}


class Kind(NamedTuple):
    name: str
    at: str  # the target of the fault: a rank, the launcher, or files
    signal: Optional[int]
    # The required outcome: "named" (the job fails, and one message names the rank and the cause), "in order" (the job
    # ends with a checkpoint), "mistake" (one message, exit code 2), "gone" (no process is left), or "unharmed" (the run
    # continues and reports the fault).
    aftermath: str


KINDS = [
    Kind("SIGKILL", "rank", signal.SIGKILL, "named"),
    Kind("SIGSEGV", "rank", signal.SIGSEGV, "named"),
    Kind("SIGABRT", "rank", signal.SIGABRT, "named"),
    Kind("SIGSTOP", "rank", STOPPED, "named"),
    Kind("SIGTERM", "rank", signal.SIGTERM, "in order"),
    Kind("SIGINT", "rank", signal.SIGINT, "in order"),
    Kind("launcher SIGTERM", "launcher", signal.SIGTERM, "in order"),
    Kind("launcher SIGKILL", "launcher", signal.SIGKILL, "gone"),
    Kind("full disk", "files", None, "mistake"),
    Kind("run directory gone", "files", None, "unharmed"),
]


def combinations(launchers):
    """All possible combinations; files can be hit only after they exist."""
    return [(launcher, kind, phase) for launcher in launchers for kind in KINDS for phase in PHASES
            if not (kind.at == "files" and phase == "start")]


def script():
    """A switch every few steps, back and forth."""
    layouts = ["d=1,t=2,p=1", "d=2,t=1,p=1"]
    steps = range(SWITCH_EVERY, STEPS, SWITCH_EVERY)
    return "".join(json.dumps({"after_step": step, "configuration": layouts[i % 2] + ",B=8,b=2"}) + "\n"
                   for i, step in enumerate(steps))


def set_signals():
    """Restores Ctrl-C, which a shell disables in programs that it starts in the background."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Failed(Exception):
    """A round with a wrong outcome."""


def expect(condition, *what):
    if not condition:
        raise Failed("\n".join(str(each) for each in what))


class Outcome(NamedTuple):
    launcher: str
    kind: str
    phase: str
    place: str  # where the rank was according to the job, or how the job ended
    seconds: float  # until no rank was left
    failure: str


class Job:
    """A running job in its own folder. Its output goes to files, because leftover processes could keep a pipe open."""

    def __init__(self, folder, launcher, run, settings):
        self.folder, self.launcher, self.run = folder, launcher, run
        command = [COPUS, "train", "run.toml", "--run-dir", run, *settings]
        if launcher == "torchrun":
            command = [TORCHRUN, "--no-python", "--nproc-per-node", str(RANKS), "--master-port", free_port(), *command]
        self.output, self.errors = folder / f"{run}.out", folder / f"{run}.err"
        with open(self.output, "w", encoding="utf-8") as output, open(self.errors, "w", encoding="utf-8") as errors:
            self.process = subprocess.Popen(command, cwd=folder, stdout=output, stderr=errors, preexec_fn=set_signals)
        variable = "RANK" if launcher == "torchrun" else "COPUS_RANK"
        self.ranks = ranks_of(self.process.pid, RANKS, self.lives, variable)
        if self.ranks is None:
            self.clean_up()
            raise Failed(f"the job does not start\n{self.said()}")

    def lives(self):
        return self.process.poll() is None

    def said(self):
        return self.output.read_text(errors="replace") + self.errors.read_text(errors="replace")

    def messages(self):
        lines = self.errors.read_text(errors="replace").splitlines()
        return [line for line in lines if "copus: error:" in line or "copus: internal error:" in line]

    def wait_for(self, condition, seconds, what):
        deadline = time.monotonic() + seconds
        while not condition():
            expect(time.monotonic() < deadline, what, self.said())
            time.sleep(0.002)

    def wait_for_steps(self, count):
        log = self.folder / self.run / "run.jsonl"
        self.wait_for(lambda: not self.lives() or (log.exists() and len(log.read_bytes().splitlines()) >= count), TIMEOUT,
                      f"it does not reach step {count}")

    def wait_for_phase(self, words, chance):
        """Waits until a rank has just come to this place, some steps into the run."""
        first = chance.randrange(1, STEPS * 2 // 3)
        places, end = Places(self.ranks[0]), time.monotonic() + TIMEOUT
        while self.lives() and time.monotonic() < end and not any(step >= first for step in places.steps_with(words)):
            time.sleep(0.0002)
        places.close()

    def clean_up(self):
        for pid in [self.process.pid, *(self.ranks or {}).values()]:
            if not is_gone(pid):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


class Rounds:
    def __init__(self, folder, seed, judges_seconds):
        self.folder, self.chance, self.judges_seconds = folder, random.Random(seed), judges_seconds
        lines = (f"line {i}: the sea and the sky and the stars are far away from here\n" for i in range(400))
        (folder / "corpus.txt").write_text("".join(lines), encoding="utf-8")
        (folder / "script.jsonl").write_text(script(), encoding="utf-8")
        text = RUN.format(steps=STEPS, checkpoint_interval=CHECKPOINT_EVERY).replace("micro_batch = 4", "micro_batch = 2")
        text = text.replace("[evaluate]\ninterval = 20", f"[evaluate]\ninterval = {EVALUATE_EVERY}")
        (folder / "run.toml").write_text(MODEL + text, encoding="utf-8")
        self.copus("train", "run.toml", "--run-dir", "expected")
        self.expected = self.log("expected")

    def copus(self, *arguments):
        result = subprocess.run([COPUS, *arguments], cwd=self.folder, capture_output=True, text=True, timeout=TIMEOUT,
                                check=False)
        expect(result.returncode == 0, f"copus {' '.join(arguments)} ended with {result.returncode}", result.stdout,
               result.stderr)

    def log(self, run):
        """The values to compare for each step, as text: equal only if the numbers are bitwise equal."""
        lines = (self.folder / run / "run.jsonl").read_text(encoding="utf-8").splitlines()
        # An evaluation that a resumed run makes up for repeats the line of its step.
        records = {record["step"]: record for record in (json.loads(line, parse_float=str) for line in lines)}.values()
        return [(record["step"], record["loss"], record["grad_norm"], record["consumed_samples"]) for record in records]

    def strike(self, job, kind, victim):
        if kind.at == "rank":
            os.kill(job.ranks[victim], kind.signal)
        elif kind.at == "launcher":
            job.process.send_signal(kind.signal)
        elif kind.name == "full disk":
            written = (self.folder / job.run / "run.jsonl").stat().st_size
            for pid in job.ranks.values():
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (written, written))
        else:
            (self.folder / job.run).rename(self.folder / f"{job.run}-away")

    def wait_for_end(self, job, kind, victim):
        """Waits until no rank is left. A stopped rank under torchrun does not count: torchrun takes 30 s to end it."""
        struck = time.monotonic()
        is_torchruns = kind.signal == STOPPED and job.launcher == "torchrun"
        waited_for = [pid for rank, pid in job.ranks.items() if not (is_torchruns and rank == victim)]
        job.wait_for(lambda: all(is_gone(pid) for pid in waited_for), TIMEOUT, "ranks are left")
        seconds = time.monotonic() - struck
        if is_torchruns and not is_gone(job.ranks[victim]):
            os.kill(job.ranks[victim], signal.SIGKILL)
        job.wait_for(lambda: not job.lives() and all(is_gone(pid) for pid in job.ranks.values()), TIMEOUT,
                     "processes are left")
        return seconds

    def judge(self, job, kind, phase, victim):
        """Returns the place where the rank was hit. Raises Failed."""
        code, messages, said = job.process.returncode, job.messages(), job.said()
        if code == 0:
            is_told = "was deleted or moved, or a part of it: it is made again" in said
            return "went on" if kind.aftermath == "unharmed" and is_told else "after the end"
        expect(kind.aftermath != "unharmed", f"exit code {code}", said)
        pid, under_torchrun = job.ranks[victim], job.launcher == "torchrun"
        in_order = f"--resume --run-dir {job.run}" in job.output.read_text(encoding="utf-8")
        if kind.aftermath == "in order" and in_order:
            expect(not messages, *messages)
            wanted = 130 if kind.signal == signal.SIGINT else 75
            expect(under_torchrun or code == wanted, f"exit code {code}, not {wanted}", said)
            return "ended in order"
        if kind.aftermath == "gone" and not under_torchrun:
            return "gone"  # with the process that could have reported it
        if kind.name == "launcher SIGTERM" and phase == "start":
            expect(not messages, said)
            return "before the run"
        if not messages and phase == "start" and under_torchrun:  # torchrun reports it before the ranks know each other
            expect(re.search(rf"exitcode +: -{int(kind.signal)} \(pid: {pid}\)", said), said)
            return "told by torchrun"
        # A rank that starts after torchrun is gone knows neither torchrun nor the other ranks.
        most = RANKS if kind.aftermath == "gone" and phase == "start" else 1
        expect(1 <= len(messages) <= most, f"{len(messages)} messages", said)
        if kind.aftermath == "gone":
            expect("is gone; the job is told to end" in messages[0] or "meeting place" in messages[0], said)
            return "ended in order" if in_order else "gone"
        if kind.aftermath == "mistake":
            expect(under_torchrun or code == 2, f"exit code {code}", said)
            return "told"
        expect(under_torchrun or code == 1 or code == 128 + int(kind.signal), f"exit code {code}", said)
        cause = {True: "stopped \\(SIGSTOP\\)|did not come", False: "killed by signal|its process ended"}
        named = re.search(rf"rank {victim} (?:\(pid {pid}\) )?failed(?: at (.*))?: (?:{cause[kind.signal == STOPPED]})",
                          messages[0])
        expect(named, said)
        return re.sub(r"\d+", "N", named.group(1) or "nowhere")

    def play(self, number, launcher, kind, phase):
        run, settings = f"run{number}", []
        if phase == "start":
            settings = ["--set", f"parallel.wait_limit={START_WAIT}"]
        victim = self.chance.randrange(RANKS)
        place, seconds, job = "", 0.0, None
        try:
            job = Job(self.folder, launcher, run, settings)
            if phase == "start":
                time.sleep(self.chance.uniform(0, 0.4))
            else:
                job.wait_for_steps(1)
                if PHASES[phase]:
                    job.wait_for_phase(PHASES[phase], self.chance)
                else:
                    time.sleep(self.chance.uniform(0, 0.3))
            self.strike(job, kind, victim)
            seconds = self.wait_for_end(job, kind, victim)
            place = self.judge(job, kind, phase, victim)
            limit = GONE_WITHIN + (START_WAIT if phase == "start" else 0)
            is_in_time = seconds <= limit or kind.aftermath == "unharmed" or not self.judges_seconds
            expect(is_in_time, f"ranks were there for {seconds:.1f} s", job.said())
            if place == "went on":
                expect(self.log(run) == self.expected, "the log has a hole")
            elif kind.aftermath == "unharmed":  # the run had already ended
                (self.folder / f"{run}-away").rename(self.folder / run)
            shutil.rmtree(self.folder / f"{run}-away", ignore_errors=True)
            self.copus("train", "run.toml", "--resume", "--run-dir", run)
            expect(self.log(run) == self.expected, "the losses differ", self.log(run), self.expected)
            shutil.rmtree(self.folder / run)
            return Outcome(launcher, kind.name, phase, place, seconds, "")
        except (Failed, OSError, subprocess.TimeoutExpired) as failure:
            return Outcome(launcher, kind.name, phase, place, seconds, f"{type(failure).__name__}: {failure}")
        finally:
            if job:
                job.clean_up()


def table(outcomes, key: Callable[[Outcome], str]):
    groups = collections.defaultdict(list)
    for outcome in outcomes:
        groups[key(outcome)].append(outcome)
    for name, group in groups.items():
        too_late = [outcome for outcome in group if outcome.place == "after the end"]
        seconds = sorted(outcome.seconds for outcome in group if outcome.place not in ("after the end", "went on"))
        median, worst = (seconds[len(seconds) // 2], seconds[-1]) if seconds else (0.0, 0.0)
        failures = sum(bool(outcome.failure) for outcome in group)
        print(f"  {name:<32} {len(group):>4} rounds {failures:>3} failed {len(too_late):>3} came too late   "
              f"gone after {median:.2f} s, worst {worst:.2f} s")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--rounds", type=int, help="judges seconds too; without it 6 rounds do not")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--launchers", default="own,torchrun" if os.path.exists(TORCHRUN) else "own")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # an orderly end, which also ends the processes started here
    with tempfile.TemporaryDirectory(prefix="copus_fault_rounds_") as folder:
        rounds = Rounds(pathlib.Path(folder), options.seed, judges_seconds=options.rounds is not None)
        ways = combinations(options.launchers.split(","))
        outcomes, waiting = [], []
        for number in range(options.rounds or ROUNDS_IN_CTEST):
            if not waiting:
                waiting = rounds.chance.sample(ways, len(ways))
            outcome = rounds.play(number, *waiting.pop())
            outcomes.append(outcome)
            print(f"round {number}: {outcome.launcher}, {outcome.kind}, {outcome.phase}: "
                  f"{'FAILED: ' + outcome.failure if outcome.failure else outcome.place}, gone after "
                  f"{outcome.seconds:.2f} s", flush=True)
    for title, key in [("By launcher", lambda outcome: outcome.launcher), ("By kind", lambda outcome: outcome.kind),
                       ("By phase", lambda outcome: outcome.phase)]:
        print(f"{title}:")
        table(outcomes, key)
    if options.json:
        text = json.dumps([outcome._asdict() for outcome in outcomes], indent=1)
        options.json.write_text(text + "\n", encoding="utf-8")
    return 1 if any(outcome.failure for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
