#!/usr/bin/env python3
"""Injects faults at every place of a job that trains, recovers from failures, lets ranks leave and resumes. Is any step
lost?

A story is a layout and the faults that are part of it. A place is a rank's report of where it is in the program;
reports that differ only in numbers are the same place. For each story, a run without further faults lists the places,
so that no new place is missed. A cell is a place, a process with its role, and a kind: KILL, STOP, PAUSE (stopped for
three seconds) or TERM. Each cell is one run; `--pairs` adds runs of two cells at once, drawn by a seed.

A run survives if it exits with code 0, has every step once, consumes the same samples and has the same losses as the
undisturbed run, and `copus replay` reproduces its decisions. A run that instead ends with one message, or with code 75,
is resumed. If the resumed run meets all of these conditions, it is listed as refused. Anything else is reported as lost
work. A second call continues from the output file:
    python3 bench/healing/cells.py --output cells.jsonl --pairs 200
    python3 bench/healing/cells.py --output cells.jsonl --table
"""

import argparse
import collections
import concurrent.futures
import itertools
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile

from leaving import MODEL

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
STEPS = 24
PATIENCE = 600  # seconds within which a job must end
# Losses of different layouts differ by rounding, which grows over the steps.
RELATIVE = 1e-3
KINDS = ("KILL", "STOP", "PAUSE", "TERM")

RUN = MODEL + """[train]
sequence_length = 32
global_batch = 8
micro_batch = 1
threads = 1
precision = "fp32"
max_steps = {steps}
[optimizer]
lr = 1e-3
[evaluate]
interval = 9
[checkpoint]
interval = 5
[parallel]
"""

PAIR = "data_parallel = 2\n"
FOUR = "data_parallel = 4\n"
MOVING = """data_parallel = 2
pipeline_parallel = 2
zero_stage = 1
[adapt]
policy = "script"
file = "moves.jsonl"
zero_stages = [0, 1, 2, 3]
max_tensor_parallel = 4
[cluster]
ranks_per_node = 4
within_node = { latency_microseconds = 5.0, gigabytes_per_second = 4.0 }
between_nodes = { latency_microseconds = 5.0, gigabytes_per_second = 4.0 }
device = { matmul_teraflops = 0.1 }
"""
MOVES = "".join(json.dumps({"after_step": step, "configuration": configuration}) + "\n" for step, configuration in
                ((6, "d=4,t=1,p=1,B=8,b=1,zero=3"), (12, "d=1,t=2,p=2,B=8,b=1"), (18, "d=2,t=2,p=1,B=8,b=1,zero=2")))

# Each story has a layout and the faults that are part of it. Further faults are injected into the listed processes,
# which are given by number, with their roles.
STORIES = {
    "two ranks": (PAIR, [], {0: "leader", 1: "holder"}),
    "four ranks that move": (MOVING, [], {0: "leader", 3: "holder"}),
    "one is lost": (PAIR, ["step 8,@1#1:KILL"], {0: "only holder, leader", 2: "newcomer"}),
    "one leaves": (PAIR, ["step 8,@1#1:TERM"], {0: "leader", 1: "leaver"}),
    "the leader leaves": (PAIR, ["step 8,@0#1:TERM"], {0: "leaver, leader", 1: "next leader"}),
    "a spare": (FOUR, ["step 8,@1#1:KILL"], {3: "spare", 2: "holder"}),
    "all are lost": (PAIR, ["step 8,@0#1:KILL", "step 8,@1#1:KILL"], {2: "newcomer, leader", 3: "newcomer"}),
}
SETTINGS = {"a spare": ["--set", "heal.replace=false"]}


class Bench:
    def __init__(self, program, folder):
        self.program, self.folder = program, folder
        words = random.Random(0)
        (folder / "corpus.txt").write_text("".join(
            f"{words.choice(['the', 'a'])} {words.choice(['sea', 'sky', 'hill'])} {n}\n" for n in range(20_000)))
        (folder / "moves.jsonl").write_text(MOVES)
        self.expected = {}
        for story, (parallel, _, _) in STORIES.items():
            (folder / f"{story}.toml").write_text(RUN.format(steps=STEPS) + parallel)

    def train(self, story, run, faults=(), log=None, resume=False):
        environment = {**os.environ, "COPUS_FAULT": ";".join(faults), "OMP_NUM_THREADS": "1"}
        if log:
            environment["COPUS_FAULT_LOG"] = str(log)
        command = [self.program, "train", f"{story}.toml", "--run-dir", run, *SETTINGS.get(story, [])]
        try:
            return subprocess.run(command + ["--resume"] * resume, cwd=self.folder, env=environment, text=True,
                                  capture_output=True, timeout=PATIENCE)
        except subprocess.TimeoutExpired as late:
            return subprocess.CompletedProcess(command, None, "", (late.stderr or b"").decode(errors="replace"))

    def records(self, run):
        records = map(json.loads, (self.folder / run / "run.jsonl").read_text().splitlines())
        # An evaluation that is made later than its step repeats the line of that step.
        return [list(lines)[-1] for _, lines in itertools.groupby(records, key=lambda record: record["step"])]

    def places(self, story):
        """Returns the undisturbed run of a story, and the places at which faults may be injected into its processes."""
        _, own_faults, roles = STORIES[story]
        log = self.folder / f"{story}.log"
        unharmed = self.train(story, f"{story}-expected")
        assert unharmed.returncode == 0, unharmed.stderr
        self.expected[story] = self.records(f"{story}-expected")
        told = self.train(story, f"{story}-told", own_faults, log)
        assert told.returncode == 0, told.stderr
        points, passed, has_begun = {}, collections.defaultdict(list), not own_faults
        for line in log.read_text().splitlines():
            process, place = line.split(" ", 1)
            has_begun = has_begun or any(place.startswith(fault.split(",")[0]) for fault in own_faults)
            process = int(process)
            if process not in roles:
                continue
            passed[process].append(place)
            point = (process, re.sub(r"\d+", "N", place))
            # A story without faults of its own needs a place after its first checkpoint.
            is_early = re.match(r"step [1-5]\b", place) and not own_faults
            if has_begun and not is_early and point not in points:
                points[point] = f"{place}@{process}#{sum(place in one for one in passed[process])}"
        return points

    def difference(self, story, run):
        try:
            records, expected = self.records(run), self.expected[story]
        except (OSError, json.JSONDecodeError) as error:
            return str(error)
        if [record["step"] for record in records] != [record["step"] for record in expected]:
            return f"steps {[record['step'] for record in records]}"
        if any(a["consumed_samples"] != b["consumed_samples"] for a, b in zip(records, expected)):
            return "other samples"
        worst = max(abs(a["loss"] / b["loss"] - 1) for a, b in zip(records, expected))
        if worst > RELATIVE:
            return f"losses differ by {worst:.2g}"
        if not (self.folder / run / "decisions.jsonl").exists():
            return ""
        replayed = subprocess.run([self.program, "replay", run], cwd=self.folder, text=True, capture_output=True)
        return f"replay: {replayed.stdout[-500:]} {replayed.stderr[-500:]}" if replayed.returncode != 0 else ""

    def strike(self, story, cells):
        run = f"run-{os.getpid()}-{random.getrandbits(48):x}"
        log = self.folder / f"{run}.log"
        faults = STORIES[story][1] + [f"{at}:{kind}" for at, kind in cells]
        ended = self.train(story, run, faults, log)
        passed = log.read_text().splitlines() if log.exists() else []
        struck = all(self.reached(at, passed) for at, _ in cells)
        messages = [line for line in ended.stderr.splitlines() if line.startswith("copus: error:")]
        outcome, why = "survived", ""
        if ended.returncode is None:
            outcome, why = "hung", ended.stderr[-2000:]
        elif ended.returncode != 0:
            outcome, why = "refused", " | ".join(messages) or f"code {ended.returncode}"
            by_name = ended.returncode == 75 or len(messages) == 1
            again = self.train(story, run, resume=True)
            if not by_name or again.returncode != 0:
                outcome, why = "lost", f"{why}; code {ended.returncode}; resumed: {again.stderr[-1000:]}"
        if outcome in ("survived", "refused") and (difference := self.difference(story, run)):
            outcome, why = "lost", f"{why} {difference}; {ended.stderr[-2000:]}"
        restarted = "after it again" in ended.stderr
        shutil.rmtree(self.folder / run, ignore_errors=True)
        log.unlink(missing_ok=True)
        return {"outcome": outcome, "why": why, "struck": struck, "from_checkpoint": restarted,
                "code": ended.returncode}

    @staticmethod
    def reached(at, passed):
        place, rest = at.rsplit("@", 1)
        process, passes = rest.split("#")
        return sum(line.startswith(f"{process} ") and place in line for line in passed) >= int(passes)


def table(results):
    counts = collections.defaultdict(collections.Counter)
    for one in results:
        for number, cell in enumerate(one["cells"]):
            role = "pairs" if len(one["cells"]) > 1 else cell["role"]
            if number == 0:
                counts[one["story"], role, "all" if role == "pairs" else cell["kind"]][
                    one["outcome"] if one["struck"] else "not reached"] += 1
    columns = ("survived", "refused", "lost", "hung", "not reached")
    print("| story | role | kind | " + " | ".join(columns) + " |")
    print("|---|---|---|" + "---|" * len(columns))
    for (story, role, kind), count in sorted(counts.items()):
        print(f"| {story} | {role} | {kind} | " + " | ".join(str(count[column]) for column in columns) + " |")
    total = collections.Counter()
    for count in counts.values():
        total.update(count)
    print("| all | | | " + " | ".join(str(total[column]) for column in columns) + " |")
    places = {cell["place"] for one in results for cell in one["cells"]}
    print(f"\n{len(places)} places; {sum(one['from_checkpoint'] for one in results)} runs went back to a checkpoint")
    for one in results:
        if one["outcome"] in ("lost", "hung"):
            print(f"\n{one['outcome']}: {one['story']}: {one['faults']}: {one['why'][:600]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--copus", default=str(ROOT / "build" / "copus"))
    parser.add_argument("--output", default="cells.jsonl")
    parser.add_argument("--pairs", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--table", action="store_true", help="print what the file holds, and run nothing")
    options = parser.parse_args()
    output = pathlib.Path(options.output)
    results = [json.loads(line) for line in output.read_text().splitlines()] if output.exists() else []
    if options.table:
        return table(results)
    done = {(one["story"], tuple(one["faults"])) for one in results}
    chance = random.Random(options.seed)
    with tempfile.TemporaryDirectory(prefix="cells-") as folder:
        bench = Bench(os.path.abspath(options.copus), pathlib.Path(folder))
        plans = []
        for story, (_, _, roles) in STORIES.items():
            points = bench.places(story)
            cells = [{"place": place, "role": roles[process], "kind": kind, "at": at}
                     for (process, place), at in points.items() for kind in KINDS]
            print(f"{story}: {len(points)} points", flush=True)
            plans += [(story, [cell]) for cell in cells]
            plans += [(story, chance.sample(cells, 2)) for _ in range(options.pairs // len(STORIES))]
        chance.shuffle(plans)

        def carry_out(plan):
            story, cells = plan
            faults = [f"{cell['at']}:{cell['kind']}" for cell in cells]
            if (story, tuple(faults)) in done:
                return None
            found = bench.strike(story, [(cell["at"], cell["kind"]) for cell in cells])
            return {"story": story, "faults": faults, "cells": cells, **found}

        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool, output.open("a") as file:
            for one in pool.map(carry_out, plans):
                if one is None:
                    continue
                file.write(json.dumps(one) + "\n")
                file.flush()
                if one["outcome"] in ("lost", "hung"):
                    print(f"{one['outcome']}: {one['story']} {one['faults']} {one['why'][:300]}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
