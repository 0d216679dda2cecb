#!/usr/bin/env python3
"""Storms: ranks are killed or stopped again and again, faster than a job can heal. Is a step lost, or does the run end?

Each run trains a small model on 4 or 6 ranks, on one machine or on two (simulated by two launchers on this machine).
The run's seed draws the layout and the ZeRO stage. Random ranks are struck every 0.05 to 1 s, at least 20 times, by
SIGKILL, SIGSEGV, SIGSTOP, a stop of two seconds, and on one machine SIGTERM. Launchers are not struck. 30 steps after
the last strike the launchers receive SIGTERM, which ends the job with a checkpoint and code 75. If the job ends before
its SIGTERM, it is resumed. In the table, such an end with code 75 counts as "resumed after 75", and one with code 1 as
"ended otherwise".

A run passes if it ends with code 75 after the SIGTERM or with code 0, has every step once, and has the same samples and
losses as the undisturbed run. Losses can be compared at this learning rate: undisturbed runs in different layouts
differ by at most 1e-7 after 1,000 steps. At a rate of 1e-3 the model memorises its text, and rounding alone changes the
losses by 20 %.

Results are appended to a file, a line per run, and a second call continues from there:
    python3 bench/healing/storms.py --runs 200 --output storms.jsonl
"""

import argparse
import collections
import concurrent.futures
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
import threading
import time

from leaving import (MODEL, ROOT, Launchers, failure_of, free_port, largest_difference, make_folder, processes_of, records,
                     train_undisturbed)

STEPS = 1000
LAST_STRIKE = 950  # the last step at which ranks are struck
CALM = 30  # steps between the last strike and the end
STRIKES = (20, 40)
GAPS = (0.05, 1.0)
SIGNALS = {"KILL": signal.SIGKILL, "SEGV": signal.SIGSEGV, "STOP": signal.SIGSTOP, "PAUSE": signal.SIGSTOP,
           "TERM": signal.SIGTERM}
LAYOUTS = {4: [(4, 1, 1), (2, 2, 1), (2, 1, 2)], 6: [(6, 1, 1), (3, 2, 1), (3, 1, 2)]}

RUN = MODEL + """[train]
sequence_length = 32
global_batch = 12
micro_batch = 1
threads = 1
precision = "fp32"
max_steps = {steps}
[parallel]
data_parallel = {d}
tensor_parallel = {t}
pipeline_parallel = {p}
zero_stage = {zero}
[optimizer]
lr = 1e-4
[evaluate]
interval = 0
max_batches = 1
[checkpoint]
interval = 20
"""
ALONE = {"d": 1, "t": 1, "p": 1, "zero": 0}


def draw(seed):
    chance = random.Random(seed)
    ranks, machines = chance.choice([4, 6]), chance.choice([1, 2])
    d, t, p = chance.choice(LAYOUTS[ranks])
    # A rank that leaves is not replaced, so few of the strikes are SIGTERM.
    kinds = ["KILL"] * 4 + ["SEGV"] * 2 + ["STOP"] * 2 + ["PAUSE"] + (["TERM"] if machines == 1 else [])
    return {"seed": seed, "ranks": ranks, "machines": machines, "layout": {"d": d, "t": t, "p": p, "zero": chance.randint(0, 3)},
            "strikes": chance.randint(*STRIKES), "kinds": kinds}


def strikes_of(drawn):
    """Yields strikes without end: the time since the previous one, which process it hits, and its kind."""
    chance = random.Random(-drawn["seed"])
    while True:
        yield chance.uniform(*GAPS), chance.random(), chance.choice(drawn["kinds"])


class Job(Launchers):
    patience = 600

    def __init__(self, copus, folder, machines, resume):
        command = [copus, "train", "run.toml", "--run-dir", "r"] + ["--resume"] * resume
        port = free_port()
        self.launchers = []
        self.errors = [folder / f"errors{machine}" for machine in range(machines)]
        for machine, errors in enumerate(self.errors):
            place = {"WORLD_SIZE": str(machines), "RANK": str(machine), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
                     "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port} if machines > 1 else {}
            with open(folder / f"output{machine}", "a") as output, errors.open("a") as told:
                self.launchers.append(subprocess.Popen(command, cwd=folder, stdout=output, stderr=told,
                                                       env={**os.environ, **place, "OMP_NUM_THREADS": "1"}))

    def strike(self, where, kind):
        pids = sorted(pid for launcher in self.launchers for pid in processes_of(launcher).values())
        if not pids:
            return False
        pid = pids[int(where * len(pids))]
        try:
            os.kill(pid, SIGNALS[kind])
        except ProcessLookupError:
            return False
        if kind == "PAUSE":
            threading.Timer(2, continue_process, [pid]).start()
        return True

    def goes_on(self):
        return all(launcher.poll() is None for launcher in self.launchers)

    def leave_after(self, folder, steps):
        """Sends SIGTERM to the launchers once the job has recorded `steps` steps; returns whether that happened."""
        deadline = time.monotonic() + self.patience
        while len(records(folder)) < steps and time.monotonic() < deadline:
            if not self.goes_on():
                return False
            time.sleep(0.1)
        for launcher in self.launchers:
            launcher.send_signal(signal.SIGTERM)
        return True


def continue_process(pid):
    try:
        os.kill(pid, signal.SIGCONT)
    except ProcessLookupError:
        pass


def has_checkpoint(folder, step):
    return (folder / "r" / "checkpoints" / f"step-{step:08}").is_dir()


def begin(layout):
    return make_folder(RUN.format(steps=STEPS, **layout))


def run(copus, drawn, expected):
    folder = begin(drawn["layout"])
    job, codes, struck, told = None, [], collections.Counter(), False
    began = time.monotonic()
    try:
        strikes = strikes_of(drawn)
        while not codes or (not told and codes[-1] in (1, 75) and len(codes) < 20):
            job = Job(copus, folder, drawn["machines"], resume=bool(codes))
            for gap, where, kind in strikes:
                time.sleep(gap)
                if not job.goes_on() or sum(struck.values()) == drawn["strikes"] or len(records(folder)) > LAST_STRIKE:
                    break
                struck[kind] += job.strike(where, kind)
            told = job.leave_after(folder, len(records(folder)) + CALM)
            codes.append(job.finish())
            job.kill()
        errors = "".join(path.read_text() for path in sorted(folder.glob("errors*")))
        output = "".join(path.read_text() for path in sorted(folder.glob("output*")))
        steps = records(folder)
        in_order = codes[-1] == 0 or (told and codes[-1] == 75 and has_checkpoint(folder, len(steps)))
        failure = failure_of(steps, expected[:len(steps)]) if in_order else f"exit codes {codes}, {len(steps)} steps"
        pauses = [float(one) for one in re.findall(r"pause ([0-9.e-]+) s", output)]
        return {**{key: drawn[key] for key in ("seed", "ranks", "machines", "layout")}, "struck": struck, "codes": codes,
                "told": told, "steps": len(steps), "from_checkpoint": errors.count("after it again"), "failure": failure,
                "largest_difference": largest_difference(steps, expected),
                "pauses": pauses, "seconds": time.monotonic() - began,
                "errors": errors if failure or {*codes} - {0, 75} else "", "output": output if failure else ""}
    finally:
        if job:
            job.kill()
        shutil.rmtree(folder, ignore_errors=True)


def table(results):
    groups = collections.defaultdict(list)
    for one in results:
        groups[one["ranks"], one["machines"], one["layout"]["zero"]].append(one)
    print("| ranks | machines | ZeRO | storms | strikes | complete | resumed after 75 | from a checkpoint | failed | ended otherwise |")
    print("|---|---|---|---|---|---|---|---|---|---|")

    def row(name, ones):
        ended = sum(any(code not in (0, 75) for code in one["codes"]) for one in ones)
        print(f"| {name} | {len(ones)} | {sum(sum(one['struck'].values()) for one in ones)} | "
              f"{sum(not one['failure'] for one in ones)} | {sum(75 in one['codes'][:-1] for one in ones)} | "
              f"{sum(one['from_checkpoint'] > 0 for one in ones)} | "
              f"{sum(bool(one['failure']) for one in ones)} | {ended} |")

    for (ranks, machines, zero), ones in sorted(groups.items()):
        row(f"{ranks} | {machines} | {zero}", ones)
    row("all | | ", results)
    pauses = [pause for one in results for pause in one["pauses"]]
    differences = [one["largest_difference"] for one in results if one["largest_difference"] is not None]
    if pauses:
        print(f"\n{len(pauses)} pauses: median {statistics.median(pauses):.3g} s, longest {max(pauses):.3g} s; largest "
              f"difference of a loss {max(differences):.2g}; fewest strikes {min(sum(one['struck'].values()) for one in results)}")
    for one in results:
        if one["failure"]:
            print(f"\nFAILED seed {one['seed']}: {one['ranks']} ranks, {one['machines']} machines, {one['layout']}: "
                  f"{one['failure'][:300]}: {one['errors'][-1500:]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--copus", type=lambda path: str(pathlib.Path(path).resolve()), default=str(ROOT / "build" / "copus"))
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="storms at a time")
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("storms.jsonl"))
    parser.add_argument("--table", action="store_true", help="print what the file holds, and run nothing")
    options = parser.parse_args()
    done = [json.loads(line) for line in options.output.read_text().splitlines()] if options.output.exists() else []
    if not options.table:
        seeds = [seed for seed in range(options.first_seed, options.first_seed + options.runs)
                 if seed not in {one["seed"] for one in done}]
        expected = train_undisturbed(options.copus, begin(ALONE)) if seeds else []
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool, options.output.open("a") as output:
            for result in pool.map(lambda seed: run(options.copus, draw(seed), expected), seeds):
                done.append(result)
                output.write(json.dumps(result) + "\n")
                output.flush()
                print(f"seed {result['seed']}: {result['ranks']} ranks, {result['machines']} machines, {result['layout']}: "
                      f"{sum(result['struck'].values())} strikes, exit codes {result['codes']}, "
                      f"{result['failure'][:200] or 'no step lost'}, {result['seconds']:.0f} s", flush=True)
    table(done)
    return 1 if any(one["failure"] for one in done) else 0


if __name__ == "__main__":
    sys.exit(main())
