#!/usr/bin/env python3
"""Asks ranks and machines to leave a job at random moments. Does any job lose a step?

Each run trains the same small model on two machines of two ranks each, simulated by two launchers on this machine. The
run's seed draws the layout. SIGTERM is sent to machines and ranks at random moments, together or in sequence. A job
that exits with code 75 is resumed. A run passes if it exits with code 0, has every step once, and consumes the same
samples and has the same losses as the undisturbed run.

Results are appended to a file, a line per run, and a second call continues from there:
    python3 bench/healing/leaving.py --runs 100 --output leaving.jsonl
"""

import argparse
import collections
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.append(str(ROOT / "copus" / "cli" / "testing"))

from free_port import free_port  # noqa: E402

MACHINES, RANKS_PER_MACHINE = 2, 2
STEPS, LAST_MOMENT = 40, 30
PATIENCE = 300  # seconds within which a job must end
# Losses of different layouts differ by rounding, which grows over the steps.
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
[data]
train = "corpus.txt"
mask_across_documents = false
held_out_fraction = 0.1
"""
RUN = MODEL + """[train]
sequence_length = 32
global_batch = {batch}
micro_batch = 1
threads = 1
max_steps = {steps}
[parallel]
data_parallel = {d}
tensor_parallel = {t}
pipeline_parallel = {p}
zero_stage = {zero}
[optimizer]
lr = 1e-3
[evaluate]
interval = 0
max_batches = 1
[checkpoint]
interval = 0
"""
LAYOUTS = [(4, 1, 1), (2, 2, 1), (2, 1, 2), (1, 2, 2), (1, 1, 4), (1, 4, 1)]


def draw(seed):
    """The layout of a run, and its events: (step, who receives SIGTERM)."""
    chance = random.Random(seed)
    d, t, p = chance.choice(LAYOUTS)
    layout = {"d": d, "t": t, "p": p, "zero": chance.choice([0, 1, 2, 3]) if d > 1 else 0}
    batch = chance.choice([8, 12])
    ranks = chance.sample(range(MACHINES * RANKS_PER_MACHINE), MACHINES * RANKS_PER_MACHINE)
    kind = chance.choice(["machine", "ranks of a machine", "one rank", "two together", "one by one", "all"])
    moment = chance.randint(1, LAST_MOMENT)
    later = chance.randint(moment, min(LAST_MOMENT, moment + chance.choice([0, 2, 15])))
    latest = chance.randint(later, min(LAST_MOMENT, later + chance.choice([0, 2, 15])))
    leaves = {
        "machine": [(moment, ["machine 1"])],
        "ranks of a machine": [(moment, [2]), (later, [3])],
        "one rank": [(moment, ranks[:1])],
        "two together": [(moment, ranks[:2])],
        "one by one": [(moment, ranks[:1]), (later, ranks[1:2]), (latest, ranks[2:3])],
        "all": [(moment, ranks[:1]), (later, ranks[1:])],
    }[kind]
    return {"seed": seed, "kind": kind, "layout": layout, "batch": batch, "leaves": leaves}


def records(folder):
    try:
        lines = (folder / "r" / "run.jsonl").read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:  # the last line, which is being written
            break
    # An evaluation that is made later than its step repeats the line of that step.
    return list({record["step"]: record for record in found}.values())


def processes_of(launcher):
    """The processes of the ranks that this launcher has started, by rank."""
    found = {}
    try:
        pids = pathlib.Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
    except OSError:
        return found
    for pid in map(int, pids):
        try:
            variables = pathlib.Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        found.update({int(one.split(b"=")[1]): pid for one in variables if one.startswith(b"COPUS_RANK=")})
    return found


class Launchers:
    """The launchers of a job's machines, as processes, machine 0 first: `launchers`."""

    patience = PATIENCE

    def finish(self):
        """The exit code of machine 0; None if the job hangs."""
        try:
            for launcher in self.launchers:
                launcher.wait(timeout=self.patience)
        except subprocess.TimeoutExpired:
            return None
        return self.launchers[0].returncode

    def kill(self):
        for launcher in self.launchers:
            launcher.kill()
            launcher.wait()


class Job(Launchers):
    def __init__(self, copus, folder):
        self.folder = folder
        place = {"WORLD_SIZE": str(MACHINES), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1",
                 "MASTER_PORT": free_port()}
        self.launchers = []
        for machine in range(MACHINES):
            with open(folder / f"output{machine}", "w") as output, open(folder / f"errors{machine}", "w") as errors:
                self.launchers.append(subprocess.Popen(
                    [copus, "train", "run.toml", "--run-dir", "r"], cwd=folder, stdout=output, stderr=errors,
                    env={**os.environ, **place, "RANK": str(machine)}))

    def wait_for_step(self, step):
        deadline = time.monotonic() + PATIENCE
        while len(records(self.folder)) < step and self.launchers[0].poll() is None and time.monotonic() < deadline:
            time.sleep(0.002)

    def leave(self, who):
        if who == "machine 1":
            self.launchers[1].send_signal(signal.SIGTERM)
            return
        for launcher in self.launchers:
            pid = processes_of(launcher).get(who)
            if pid is not None:
                os.kill(pid, signal.SIGTERM)


def make_folder(run):
    """A new folder with a corpus and this run."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="copus-healing-"))
    lines = (f"line {i}: the sea and the sky and the stars are far away from here\n" for i in range(400))
    (folder / "corpus.txt").write_text("".join(lines))
    (folder / "run.toml").write_text(run)
    return folder


def begin(drawn):
    return make_folder(RUN.format(steps=STEPS, batch=drawn["batch"], **drawn["layout"]))


def failure_of(steps, expected):
    """The difference from the undisturbed run; empty if there is none."""
    if [record["step"] for record in steps] != [record["step"] for record in expected]:
        return f"steps {[record['step'] for record in steps]}"
    for record, other in zip(steps, expected):
        if record["consumed_samples"] != other["consumed_samples"]:
            return f"step {record['step']} has consumed {record['consumed_samples']} samples"
        if abs(record["loss"] / other["loss"] - 1) > RELATIVE:
            return f"step {record['step']} has loss {record['loss']}, undisturbed {other['loss']}"
    return ""


def largest_difference(steps, expected):
    return max((abs(one["loss"] / other["loss"] - 1) for one, other in zip(steps, expected)), default=None)


def train_undisturbed(copus, folder):
    """Trains the run in this folder, deletes the folder, and returns the records."""
    try:
        subprocess.run([copus, "train", "run.toml", "--run-dir", "r"], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        return records(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run(copus, drawn, expected):
    folder = begin(drawn)
    job = Job(copus, folder)
    try:
        chance = random.Random(-drawn["seed"])
        for moment, leaving in drawn["leaves"]:
            job.wait_for_step(moment)
            time.sleep(chance.uniform(0, 0.02))
            for who in leaving:
                job.leave(who)
        code = job.finish()
        errors = "".join((folder / f"errors{machine}").read_text() for machine in range(MACHINES))
        codes = [code]
        if code == 75:
            resumed = subprocess.run([copus, "train", "--resume", "--run-dir", "r"], cwd=folder, text=True,
                                     capture_output=True, timeout=PATIENCE, check=False)
            codes.append(resumed.returncode)
            errors += resumed.stderr
        steps = records(folder)
        failure = f"exit codes {codes}" if codes[-1] != 0 else failure_of(steps, expected[drawn["batch"]])
        changes = sum(text.count("ranks have left") for text in
                      ((folder / f"output{machine}").read_text() for machine in range(MACHINES)))
        return {**drawn, "codes": codes, "changes": changes, "steps": len(steps), "failure": failure,
                "largest_difference": largest_difference(steps, expected[drawn["batch"]]), "errors": errors}
    finally:
        job.kill()
        shutil.rmtree(folder, ignore_errors=True)


def run_unharmed(copus, batch):
    return train_undisturbed(copus, begin({"batch": batch, "layout": {"d": 1, "t": 1, "p": 1, "zero": 0}}))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--copus", type=lambda path: str(pathlib.Path(path).resolve()), default=str(ROOT / "build" / "copus"))
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("leaving.jsonl"))
    options = parser.parse_args()
    done = [json.loads(line) for line in options.output.read_text().splitlines()] if options.output.exists() else []
    seeds = [seed for seed in range(options.first_seed, options.first_seed + options.runs)
             if seed not in {one["seed"] for one in done}]
    expected = {batch: run_unharmed(options.copus, batch) for batch in (8, 12)} if seeds else {}
    for seed in seeds:
        result = run(options.copus, draw(seed), expected)
        done.append(result)
        with options.output.open("a") as output:
            output.write(json.dumps(result) + "\n")
        print(f"seed {seed}: {result['kind']}, {result['layout']}: exit codes {result['codes']}, "
              f"{result['failure'] or 'no step lost'}", flush=True)
    failed = [one for one in done if one["failure"]]
    kinds = collections.Counter(one["kind"] for one in done)
    differences = [one["largest_difference"] for one in done if one["largest_difference"] is not None]
    print(f"{len(done)} runs, {sum(one['changes'] for one in done)} times ranks left, "
          f"{sum(one['codes'][0] == 75 for one in done)} ended with a checkpoint and were resumed; "
          f"largest difference of a loss {max(differences, default=0):.2g}; {dict(kinds)}")
    for one in failed:
        print(f"FAILED seed {one['seed']}: {one['kind']}, {one['layout']}: {one['failure']}: {one['errors'][:500]}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
