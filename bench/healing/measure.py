#!/usr/bin/env python3
"""Measures what it costs a job to be ready to heal, and what a fault costs: see README.md in this folder."""

import argparse
import json
import os
import pathlib
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from typing import Callable, Iterable, NamedTuple

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
RANKS = 4
SIGNALS = (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT)
LOOK_SECONDS = 0.02
PATIENCE = 300  # seconds; much more than a job takes to start or to end
STOPPED_BY_US = 75

RUN = """
[model]
architecture = "llama"
vocab_size = 256
hidden_size = 256
intermediate_size = 704
num_hidden_layers = 8
num_attention_heads = 4
num_key_value_heads = 4
[data]
train = "corpus.txt"
mask_across_documents = false
held_out_fraction = 0.01
[train]
sequence_length = 64
global_batch = 12
micro_batch = 1
threads = 1
precision = "fp32"
max_steps = {steps}
[parallel]
data_parallel = 4
zero_stage = 1
[optimizer]
lr = 1e-4
[evaluate]
interval = 0
max_batches = 1
[checkpoint]
interval = {checkpoint_steps}
[heal]
enabled = {heals}
"""
ENDLESS = 1_000_000


# ---- a job under way ------------------------------------------------------------------------------------------------


class Step(NamedTuple):
    """A line of run.jsonl, and when it was first seen."""

    seen: float
    number: int
    tokens: int
    seconds: float
    layout: str


class Line(NamedTuple):
    seen: float
    text: str


def environment_of(pid: int) -> dict[str, str]:
    try:
        text = pathlib.Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    except OSError:
        return {}
    return dict(variable.split("=", 1) for variable in text.split("\0") if "=" in variable)


class Job:
    """A run in a folder of its own, which is deleted at the end. Steps are in the order in which they are logged, and
    lines of output in the order in which they arrive."""

    def __init__(self, options: argparse.Namespace, heals: bool, steps: int = ENDLESS, checkpoint_steps: int = 0):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="copus_healing_", dir=options.folder))
        text = RUN.format(steps=steps, checkpoint_steps=checkpoint_steps, heals=str(heals).lower())
        (self.folder / "run.toml").write_text(text)
        lines = (f"line {i * i % 997} of some text, {i}\n" for i in range(20000))
        (self.folder / "corpus.txt").write_text("".join(lines))
        self.copus = str(options.copus.resolve())
        self.begin_command = ["train", "run.toml", "--run-dir", "run"]
        self.begin_command += [part for setting in options.settings for part in ("--set", setting)]
        self.steps: list[Step] = []
        self.output: list[Line] = []
        self.errors: list[Line] = []
        self.read_bytes = 0
        self.start(self.begin_command)

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, *_) -> None:
        if self.process.poll() is None:
            self.process.kill()  # its ranks end with it
        self.process.wait()
        for reader in self.readers:
            reader.join()
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self, command: list[str]) -> None:
        self.process = subprocess.Popen([self.copus, *command], cwd=self.folder, text=True, errors="replace",
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        pipes = ((self.process.stdout, self.output), (self.process.stderr, self.errors))
        self.readers = [threading.Thread(target=self.note_lines, args=pipe, daemon=True) for pipe in pipes]
        for reader in self.readers:
            reader.start()

    def start_again(self) -> None:
        """Restarts like a user whose job has failed: from the last checkpoint or, without one, from the beginning."""
        for reader in self.readers:
            reader.join()
        if any((self.folder / "run" / "checkpoints").glob("step-*[0-9]")):
            return self.start(["train", "--resume", "--run-dir", "run"])
        shutil.rmtree(self.folder / "run")
        self.read_bytes = 0
        return self.start(self.begin_command)

    @staticmethod
    def note_lines(pipe: Iterable[str], lines: list[Line]) -> None:
        for text in pipe:
            lines.append(Line(time.monotonic(), text.rstrip("\n")))

    def look(self) -> None:
        """Reads the steps that were logged since the last call. The log may have become shorter: a process that takes
        over a run truncates the log to the step from which it resumes."""
        now = time.monotonic()
        try:
            with open(self.folder / "run" / "run.jsonl", "rb") as log:
                if log.seek(0, os.SEEK_END) < self.read_bytes:
                    log.seek(0)
                    self.read_bytes = log.read().rfind(b"\n") + 1
                log.seek(self.read_bytes)
                lines = log.read().splitlines(True)
        except FileNotFoundError:
            return
        for line in lines:
            if not line.endswith(b"\n"):
                break
            self.read_bytes += len(line)
            record = json.loads(line)
            self.steps.append(
                Step(now, record["step"], record["consumed_tokens"], record["step_seconds"], record["strategy"]))

    def wait_until(self, condition: Callable[[], bool], seconds: float = PATIENCE) -> bool:
        """Calls look() until the condition holds, the job has ended, or time is up."""
        until = time.monotonic() + seconds
        while True:
            self.look()
            if condition():
                return True
            if self.process.poll() is not None or time.monotonic() > until:
                return condition()
            time.sleep(LOOK_SECONDS)

    def wait_for_training(self) -> None:
        if not self.wait_until(lambda: len(self.steps) > 0):
            sys.exit("the run does not begin:\n" + self.messages())

    def messages(self) -> str:
        return "\n".join(line.text for line in self.output[-10:] + self.errors)

    def rank_pids(self) -> list[int]:
        """Process ids by rank, sorted by the number that the launcher gave to the processes."""
        try:
            children = pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        except OSError:
            return []
        found = []
        for pid in map(int, children):
            variables = environment_of(pid)
            number = variables.get("COPUS_PROCESS", variables.get("COPUS_RANK"))
            if number is not None:
                found.append((int(number), pid))
        return [pid for _, pid in sorted(found)]

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            sys.exit("the run does not end:\n" + self.messages())


# ---- results --------------------------------------------------------------------------------------------------------


def machine() -> dict:
    info = pathlib.Path("/proc/cpuinfo").read_text()
    model = re.search(r"^model name\s*: (.*)$", info, re.MULTILINE)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    return {"processor": model.group(1) if model else "", "cores": os.cpu_count(), "commit": commit.strip()}


class Results:
    """Rounds in a JSON file that is always complete."""

    def __init__(self, path: pathlib.Path, options: dict):
        self.path = path
        self.content = {"options": options, "machine": machine(), "rounds": []}
        if path.exists():
            self.content = json.loads(path.read_text())
            if self.content["options"] != options:
                begun = json.dumps(self.content["options"])
                sys.exit(f"{path} was begun with other options, {begun}; name another --output")

    def find(self, **key) -> dict | None:
        rounds = self.content["rounds"]
        return next((one for one in rounds if all(one[name] == value for name, value in key.items())), None)

    def add(self, one: dict) -> None:
        self.content["rounds"].append(one)
        partial = self.path.with_suffix(".partial")
        partial.write_text(json.dumps(self.content, indent=1) + "\n")
        partial.replace(self.path)


def spread(values: list[float], form: str = ".3f") -> str:
    """Median, quartiles and number of values."""
    if not values:
        return "none"
    if len(values) < 2:
        return f"{values[0]:{form}} (1)"
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"{middle:{form}} ({low:{form}} to {high:{form}}; {len(values)})"


# ---- readiness ------------------------------------------------------------------------------------------------------


def memory_of(pids: list[int]) -> dict:
    """Bytes: of each rank its own memory and its shareable memory, and the total of all."""
    found: dict = {"own": [], "shareable": [], "together": 0}
    for pid in pids:
        texts = (pathlib.Path(f"/proc/{pid}/{name}").read_text() for name in ("status", "smaps_rollup"))
        status, rollup = (dict(re.findall(r"^(\w+):\s+(\d+) kB$", text, re.MULTILINE)) for text in texts)
        found["own"].append(int(status["RssAnon"]) * 1024)
        found["shareable"].append(int(status["RssShmem"]) * 1024)
        found["together"] += int(rollup["Pss"]) * 1024
    return found


def train_some_steps(options: argparse.Namespace, heals: bool) -> dict:
    with Job(options, heals, steps=options.steps) as job:
        if not job.wait_until(lambda: len(job.steps) >= options.steps - 2):
            sys.exit("the run does not get to its end:\n" + job.messages())
        memory = memory_of(job.rank_pids())
        code = job.process.wait(PATIENCE)
        job.look()
        if code != 0 or len(job.steps) != options.steps:
            sys.exit(f"the run ended with exit code {code}:\n" + job.messages())
        return {"seconds": [step.seconds for step in job.steps[options.warm_up:]], "memory": memory}


def readiness(options: argparse.Namespace) -> None:
    results = Results(options.output, {"steps": options.steps, "warm_up": options.warm_up, "set": options.settings})
    for number in range(options.rounds):
        if results.find(round=number):
            continue
        order = (True, False) if number % 2 == 0 else (False, True)
        runs = {"on" if heals else "off": train_some_steps(options, heals) for heals in order}
        results.add({"round": number, **runs})
        print(f"round {number}: step {statistics.median(runs['on']['seconds']):.4f} s ready to heal, "
              f"{statistics.median(runs['off']['seconds']):.4f} s not", flush=True)
    tell_readiness(results.content)


def tell_readiness(content: dict) -> None:
    rounds = content["rounds"]
    ratios = [statistics.median(one["on"]["seconds"]) / statistics.median(one["off"]["seconds"]) for one in rounds]
    mib = 1 << 20
    print(f"step, ready to heal over not: {spread(ratios, '.4f')}")
    for side in ("on", "off"):
        medians = [statistics.median(one[side]["seconds"]) for one in rounds]
        print(f"step, heal.enabled {side}: {spread(medians, '.4f')} s")
        for name in ("own", "shareable"):
            print(f"  memory of a rank, {name}: "
                  f"{spread([statistics.fmean(one[side]['memory'][name]) / mib for one in rounds], '.1f')} MiB")
    more = [(one["on"]["memory"]["together"] - one["off"]["memory"]["together"]) / mib / RANKS for one in rounds]
    print(f"all ranks together, ready to heal less not, by rank: {spread(more, '.2f')} MiB")
    for side in ("on", "off"):
        together = [one[side]["memory"]["together"] / mib / RANKS for one in rounds]
        print(f"  heal.enabled {side}: {spread(together, '.2f')} MiB by rank")


# ---- faults ---------------------------------------------------------------------------------------------------------


class Fault(NamedTuple):
    """`after`: seconds from the beginning of the counted time."""

    after: float
    rank: int
    signal: signal.Signals


def faults_of_block(seed: int, block: int, minutes: float, every: float) -> list[Fault]:
    chance = random.Random(f"{seed} {block}")
    count = int(minutes * 60 / every)
    return [Fault((number + chance.uniform(0.1, 0.5)) * every, chance.randrange(RANKS), SIGNALS[number % len(SIGNALS)])
            for number in range(count)]


def strike(job: Job, fault: Fault) -> dict | None:
    """Strikes a rank; returns None if there is none to strike."""
    pids = job.rank_pids()
    if not pids:
        return None
    rank = min(fault.rank, len(pids) - 1)
    struck = time.monotonic()
    try:
        os.kill(pids[rank], fault.signal)
    except ProcessLookupError:
        return None
    return {"struck": struck, "rank": rank, "of": len(pids), "signal": fault.signal.name, "step": job.steps[-1].number}


def first_after(lines: list[Line], moment: float, pattern: str) -> Line | None:
    return next((line for line in lines if line.seen >= moment and re.search(pattern, line.text)), None)


def pause_of(line: Line | None) -> float | None:
    found = re.search(r"pause ([0-9.e-]+) s", line.text) if line else None
    return float(found.group(1)) if found else None


def account_of_healing(job: Job, fault: dict, full: str, usual: float, until: float) -> dict:
    """How the seconds of one fault were spent; `until`: the next fault."""
    struck = fault["struck"]
    account = {name: fault[name] for name in ("rank", "of", "signal", "step")}
    named = first_after(job.errors, struck, r"failed .*; the job goes on with")
    healed = first_after(job.output, struck, r"failed .* ranks; pause")
    replaced = first_after(job.output, healed.seen, r"ranks have come; .* ranks; pause") if healed else None
    if named:
        account["named_seconds"] = named.seen - struck
    if healed and named:
        account["healed_seconds"] = max(0.0, healed.seen - named.seen)
    others = [step for step in job.steps if struck <= step.seen < until and step.layout != full]
    account["layouts"] = sorted({step.layout for step in others})
    account["steps_in_another_layout"] = len(others)
    account["slower_steps_seconds"] = sum(step.seconds - usual for step in others)
    if replaced and replaced.seen < until:
        account["replaced_after_seconds"] = replaced.seen - struck
        account["replaced_pause_seconds"] = pause_of(replaced)
    return account


def train_with_faults(options: argparse.Namespace, arm: str, faults: list[Fault]) -> dict:
    """One run of a block. The counted time begins with the first step, and lasts for options.minutes."""
    with Job(options, heals=arm != "restart", checkpoint_steps=options.checkpoint_steps) as job:
        job.wait_for_training()
        begin, first = job.steps[0].seen, job.steps[0].tokens
        end = begin + options.minutes * 60
        coming = [] if arm == "unharmed" else list(faults)
        given: list[dict] = []
        while time.monotonic() < end:
            job.look()
            if job.process.poll() is not None:
                if arm != "restart" or job.process.returncode != 1 or not given:
                    sys.exit(f"{arm}: the run ended with exit code {job.process.returncode}:\n" + job.messages())
                given[-1]["ended"] = time.monotonic()
                job.start_again()
            if coming and time.monotonic() >= begin + coming[0].after:
                fault = strike(job, coming.pop(0))
                if fault:
                    given.append(fault)
            time.sleep(LOOK_SECONDS)
        job.look()
        trained = [step for step in job.steps if step.seen <= end]
        usual = statistics.median(step.seconds for step in trained)
        result = {"arm": arm, "minutes": options.minutes, "tokens": trained[-1].tokens - first,
                  "steps": trained[-1].number, "usual_step_seconds": usual}
        tokens_per_step = trained[-1].tokens / trained[-1].number
        result["useful_seconds"] = result["tokens"] / tokens_per_step * usual
        if job.process.poll() is None:
            job.stop()
        moments = [fault["struck"] for fault in given[1:]] + [end]
        if arm == "healing":
            full = trained[0].layout
            usual = statistics.median(step.seconds for step in trained if step.layout == full)
            result["faults"] = [account_of_healing(job, fault, full, usual, until)
                                for fault, until in zip(given, moments)]
            result["named_in_all"] = sum("the job goes on with" in line.text for line in job.errors)
        elif arm == "restart":
            result["faults"] = [account_of_restart(job, fault, until) for fault, until in zip(given, moments)]
        return result


def account_of_restart(job: Job, fault: dict, until: float) -> dict:
    struck = fault["struck"]
    account = {name: fault[name] for name in ("rank", "of", "signal", "step")}
    if "ended" not in fault:
        return account
    account["ended_seconds"] = fault["ended"] - struck
    after = [step for step in job.steps if fault["ended"] < step.seen < until]
    if after:
        account["again_seconds"] = after[0].seen - fault["ended"]
        account["steps_repeated"] = max(0, fault["step"] - after[0].number + 1)
    caught_up = next((step for step in after if step.number > fault["step"]), None)
    if caught_up:
        account["caught_up_seconds"] = caught_up.seen - struck
    return account


def faults(options: argparse.Namespace) -> None:
    results = Results(options.output, {"minutes": options.minutes, "every": options.every, "seed": options.seed,
                                       "checkpoint_steps": options.checkpoint_steps, "arms": options.arms,
                                       "set": options.settings})
    for block in range(options.blocks):
        planned = faults_of_block(options.seed, block, options.minutes, options.every)
        turn = block % len(options.arms)
        for arm in options.arms[turn:] + options.arms[:turn]:
            if results.find(block=block, arm=arm):
                continue
            one = {"block": block, **train_with_faults(options, arm, planned)}
            results.add(one)
            print(f"block {block}, {arm}: {one['tokens']} tokens, {len(one.get('faults', []))} faults", flush=True)
    tell_faults(results.content)


SPLITS = {
    "healing": [("named_seconds", "until it is named"), ("healed_seconds", "then until the others train again"),
                ("slower_steps_seconds", "slower steps in other layouts"),
                ("steps_in_another_layout", "  number of these steps"),
                ("replaced_after_seconds", "until all ranks are there again"),
                ("replaced_pause_seconds", "  pause for that")],
    "restart": [("ended_seconds", "until the job has ended"), ("again_seconds", "then until its first step"),
                ("steps_repeated", "steps that are made again"), ("caught_up_seconds", "until it is as far again")],
}


def tell_faults(content: dict) -> None:
    by_key = {(one["block"], one["arm"]): one for one in content["rounds"]}
    for arm in content["options"]["arms"]:
        pairs = [(one, by_key.get((block, "unharmed"))) for (block, name), one in by_key.items() if name == arm]
        pairs = [(one, unharmed) for one, unharmed in pairs if unharmed]
        if not pairs or arm == "unharmed":
            continue
        shares = [one["tokens"] / unharmed["tokens"] for one, unharmed in pairs]
        lost = [60 * one["minutes"] * (1 - share) / len(one["faults"])
                for share, (one, _) in zip(shares, pairs) if one["faults"]]
        print(f"{arm}: effective training time {spread(shares, '.1%')}; seconds lost per fault {spread(lost, '.2f')}")
        everything = [fault for one, _ in pairs for fault in one["faults"]]
        for name, text in SPLITS[arm]:
            print(f"  {text}: {spread([fault[name] for fault in everything if fault.get(name) is not None])}")
    for arm in content["options"]["arms"]:
        shares = [one["useful_seconds"] / (60 * one["minutes"]) for one in content["rounds"] if one["arm"] == arm]
        print(f"{arm}: steps that count, at the run's own median, are {spread(shares, '.1%')} of the time")
    steps = [one["usual_step_seconds"] for one in content["rounds"] if one["arm"] == "unharmed"]
    print(f"unharmed: a step takes {spread(steps)} s")


# ---- false alarms ---------------------------------------------------------------------------------------------------


def alarms(options: argparse.Namespace) -> None:
    results = Results(options.output, {"minutes": options.minutes, "burners": options.burners, "set": options.settings})
    for number in range(options.runs):
        if results.find(run=number):
            continue
        burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(options.burners)]
        try:
            with Job(options, heals=True) as job:
                job.wait_for_training()
                job.wait_until(lambda: False, options.minutes * 60)
                ended_early = job.process.poll() is not None
                code = job.stop()
                failed = [line.text for line in job.errors if " failed" in line.text]
                longest = max(step.seconds for step in job.steps)
                results.add({"run": number, "steps": len(job.steps), "failed": failed, "exit_code": code,
                             "ended_early": ended_early, "longest_step_seconds": longest})
        finally:
            for burner in burners:
                burner.kill()
                burner.wait()
        print(f"run {number}: {len(failed)} ranks called failed in {len(job.steps)} steps", flush=True)
    tell_alarms(results.content)


def tell_alarms(content: dict) -> None:
    rounds, options = content["rounds"], content["options"]
    failed = [text for one in rounds for text in one["failed"]]
    not_in_order = sum(one["ended_early"] or one["exit_code"] != STOPPED_BY_US for one in rounds)
    longest = max((one["longest_step_seconds"] for one in rounds), default=0)
    print(f"{len(failed)} ranks called failed in {len(rounds) * options['minutes']:g} minutes beside "
          f"{options['burners']} busy processes; {not_in_order} runs ended out of order; the longest step took "
          f"{longest:.2f} s")
    for text in failed:
        print(f"  {text}")


# ---- beside another program -----------------------------------------------------------------------------------------


def heal_once(options: argparse.Namespace, program: pathlib.Path) -> dict:
    """Makes a run that is ready to heal, and that loses a rank after half of its steps."""
    with Job(argparse.Namespace(**{**vars(options), "copus": program}), heals=True) as job:
        if not job.wait_until(lambda: len(job.steps) >= options.steps):
            sys.exit("the run does not begin:\n" + job.messages())
        steps = [step.seconds for step in job.steps[options.warm_up:]]
        memory = memory_of(job.rank_pids())
        os.kill(job.rank_pids()[1], signal.SIGKILL)
        found: dict = {}

        def is_healed() -> bool:
            lost = first_after(job.output, 0, r"failed .* ranks; pause")
            come = first_after(job.output, 0, r"ranks have come; .* ranks; pause")
            found.update(lost=pause_of(lost), come=pause_of(come))
            return come is not None

        if not job.wait_until(is_healed):
            sys.exit("the run does not heal:\n" + job.messages())
        job.stop()
        return {"seconds": steps, "memory": memory, **found}


def beside(options: argparse.Namespace) -> None:
    results = Results(options.output, {"steps": options.steps, "warm_up": options.warm_up, "set": options.settings})
    sides = [("new", options.copus), ("old", options.old)]
    for number in range(options.rounds):
        if not results.find(round=number):
            runs = {side: heal_once(options, program) for side, program in (sides if number % 2 == 0 else sides[::-1])}
            results.add({"round": number, **runs})
    tell_beside(results.content)


def tell_beside(content: dict) -> None:
    rounds = content["rounds"]
    ratios = [statistics.median(one["new"]["seconds"]) / statistics.median(one["old"]["seconds"]) for one in rounds]
    print(f"step, new over old: {spread(ratios)}")
    for side in ("new", "old"):
        together = [one[side]["memory"]["together"] / (1 << 20) / RANKS for one in rounds]
        print(f"  {side}: step {spread([statistics.median(one[side]['seconds']) for one in rounds])} s; pause where a "
              f"rank is lost {spread([one[side]['lost'] for one in rounds])} s, where another one comes "
              f"{spread([one[side]['come'] for one in rounds])} s; {spread(together, '.2f')} MiB by rank")


# ---- the command ----------------------------------------------------------------------------------------------------

TELL = {"readiness": tell_readiness, "faults": tell_faults, "alarms": tell_alarms, "beside": tell_beside}


def table(options: argparse.Namespace) -> None:
    for path in options.files or [HERE / f"{name}.json" for name in TELL]:
        kind = next((name for name in TELL if path.stem.startswith(name)), None)
        if kind is None or not path.exists():
            continue
        content = json.loads(path.read_text())
        print(f"{path.name}, {content['machine']['processor']}, {content['machine']['cores']} cores, "
              f"commit {content['machine']['commit'][:7]}")
        TELL[kind](content)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, function: Callable, text: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text)
        added.set_defaults(function=function)
        added.add_argument("--copus", type=pathlib.Path, default=ROOT / "build" / "copus", help="the program")
        added.add_argument("--set", action="append", default=[], dest="settings", metavar="SECTION.KEY=VALUE")
        added.add_argument("--folder", default=None, help="where the runs are written")
        added.add_argument("--output", type=pathlib.Path, default=HERE / f"{name}.json")
        return added

    one = command("readiness", readiness, "steps and memory with heal.enabled and without, in turns")
    one.add_argument("--rounds", type=int, default=20)
    one.add_argument("--steps", type=int, default=40, help="of each run")
    one.add_argument("--warm-up", type=int, default=5, help="steps that do not count")

    one = command("faults", faults, "runs that are struck, healing and starting again, beside one that is not")
    one.add_argument("--blocks", type=int, default=5)
    one.add_argument("--minutes", type=float, default=10, help="of each run of a block")
    one.add_argument("--every", type=float, default=60, help="seconds between faults")
    one.add_argument("--checkpoint-steps", type=int, default=50)
    one.add_argument("--seed", type=int, default=1)
    arms = ["unharmed", "healing", "restart"]
    one.add_argument("--arms", nargs="+", choices=arms, default=arms)

    one = command("alarms", alarms, "runs beside busy processes that nobody strikes")
    one.add_argument("--runs", type=int, default=6)
    one.add_argument("--minutes", type=float, default=10)
    one.add_argument("--burners", type=int, default=4, help="busy processes")

    one = command("beside", beside, "steps, memory and pauses of one loss beside those of another program, in turns")
    one.add_argument("--old", type=lambda path: pathlib.Path(path).resolve(), required=True, help="the other program")
    one.add_argument("--rounds", type=int, default=5)
    one.add_argument("--steps", type=int, default=40, help="before the loss")
    one.add_argument("--warm-up", type=int, default=5, help="steps that do not count")

    one = commands.add_parser("table", help="what was found")
    one.set_defaults(function=table)
    one.add_argument("files", type=pathlib.Path, nargs="*")

    options = parser.parse_args()
    options.function(options)


if __name__ == "__main__":
    main()
