#!/usr/bin/env python3
"""Runs the experiment of README.md on one GPU, several runs at once, and appends the result of each to a file of JSON
lines as soon as it ends. A later call skips what these files hold.

    .venv/bin/python bench/card/card.py --pack                                         # the tokens, on your machine
    python3 bench/card/card.py --out rows-1.jsonl --seconds 560                        # the first runs, on the GPU's
    python3 bench/card/card.py --out rows-2.jsonl --earlier rows-1.jsonl --seconds 560      # those without a result yet
    python3 bench/card/card.py --report rows-1.jsonl rows-2.jsonl                      # the tables, anywhere
    python3 bench/card/card.py --dry-run --program build/copus --out dry.jsonl --seconds 60   # small models on CPUs
"""

import argparse
import concurrent.futures
import dataclasses
import hashlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time

from cases import CARD, CPU, Scale, branches, fixed_batches, judged_runs, modelled_seconds, run_settings
from cases import screening_runs, trunk_settings
from rows import MOST_FAILURES, by_case, differing_trunk, failure_text, finished, read_rows
from tables import report

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TOKENS = ROOT / "runs" / "card" / "tokens.tar.xz"
TEXTS = ("gcide", "wordnet", "perl", "bible")
VOCABULARY = 8192
PAIRS = ("train.bin", "train.idx", "held_out.bin", "held_out.idx")
COPIES = (1, 2, 4)  # runs at once of which the speed is measured
MARGIN = 5  # seconds before the end at which runs are killed
SLACK = 1.2  # of a forecast that no finished run confirms
LAST_LINES = 10  # of the output of a run that failed


class OutOfTime(Exception):
    """This call's time ran out during a run."""


class Failed(Exception):
    """The program failed, or a trunk diverged: there is no result."""

    def __init__(self, exit_code: int | None, output: str):
        super().__init__(f"exit code {exit_code}")
        self.exit_code, self.output = exit_code, output.strip().splitlines()[-LAST_LINES:]

    def diverged(self) -> bool:
        return self.exit_code == 2 and any("training has diverged" in line for line in self.output)


@dataclasses.dataclass(frozen=True)
class Task:
    name: str
    kind: str  # runs of one kind take equally long
    seconds: float  # forecast; the task begins only if as many are left
    share: float  # of the card
    run: object  # returns the row


def pack(output: pathlib.Path) -> None:
    """Trains the tokenizer on the training texts and packs the token ids of all texts into one file."""
    import tokenizers

    def documents():
        for name in TEXTS:
            yield from (ROOT / "data" / name / "train.txt").read_text(errors="replace").split("\n\n\n")

    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = tokenizers.ByteLevelBPETokenizer()
        tokenizer.train_from_iterator(documents(), vocab_size=VOCABULARY, special_tokens=["<|end|>"],
                                      show_progress=False)
        tokenizer.save(f"{folder}/bpe.json")
        for kind in ("train", "held_out"):
            subprocess.run([sys.executable, ROOT / "tools" / "tokenize_corpus.py",
                            *(ROOT / "data" / name / f"{kind}.txt" for name in TEXTS), "--document-separator",
                            "\\n\\n\\n", "--tokenizer", f"{folder}/bpe.json", "--eod-token", "<|end|>", "--output",
                            f"{folder}/{kind}"], check=True)
        with tarfile.open(output, "w:xz") as archive:
            for name in PAIRS:
                archive.add(f"{folder}/{name}", name)
    print(f"{output}: {output.stat().st_size / 2**20:.1f} MiB")


def build(program: pathlib.Path) -> None:
    """Builds the program for the GPU of this machine, as scripts/gpu-check does, and strips it."""
    import torch

    environment = os.environ | {"PATH": f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"}
    subprocess.run(["cmake", "-S", ROOT, "-B", program.parent, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
                    "-DCOPUS_GPU=cuda", f"-DTorch_DIR={torch.utils.cmake_prefix_path}/Torch",
                    "-DCMAKE_CUDA_ARCHITECTURES=native", "-DCMAKE_COMPILE_WARNING_AS_ERROR=OFF"],
                   check=True, env=environment)
    subprocess.run(["cmake", "--build", program.parent, "--target", "copus", "copus-torch"], check=True,
                   env=environment)
    subprocess.run(["strip", program, f"{program}-torch"], check=True)


def hash_of(program: pathlib.Path) -> str:
    """Returns a hash of the program and, where the trainer is a file of its own, of copus-torch beside it."""
    parts = [path for path in (program, program.with_name(f"{program.name}-torch")) if path.is_file()]
    return hashlib.sha256(b"".join(path.read_bytes() for path in parts)).hexdigest()[:12]


def lines_of(directory: pathlib.Path) -> list[str]:
    """Returns the complete lines of a run's log, which may be in use."""
    path = directory / "run.jsonl"
    return path.read_text().rpartition("\n")[0].splitlines() if path.is_file() else []


class Bench:
    """Starts the runs of one call in a folder that ends with the call."""

    def __init__(self, program: pathlib.Path, scale: Scale, folder: pathlib.Path, tokens: pathlib.Path,
                 deadline: float):
        self.program, self.scale, self.folder, self.deadline = program, scale, folder, deadline
        self.call = f"{time.time():.0f}"
        with tarfile.open(tokens) as archive:
            for name in PAIRS:
                (folder / name).write_bytes(archive.extractfile(name).read())
        self.train_tokens = (folder / "train.bin").stat().st_size // 2
        self.data = hashlib.sha256((folder / "train.bin").read_bytes()).hexdigest()[:12]
        self.program_hash = hash_of(program)
        (folder / "base.toml").write_text(scale.configuration())
        self.run_seconds = modelled_seconds(scale, str(program))

    def seconds_left(self) -> float:
        return self.deadline - time.monotonic() - MARGIN

    def command(self, name: str, settings: dict, resume: bool = False) -> list[str]:
        options = [option for key, value in settings.items() for option in ("--set", f"{key}={value}")]
        return [str(self.program), "train", "base.toml", "--run-dir", name, *(["--resume"] if resume else []), *options]

    def call_program(self, command: list[str]) -> str:
        """Returns the output of a program. Kills it when the call's time runs out."""
        process = subprocess.Popen(command, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                   text=True, start_new_session=True)
        try:
            text, _ = process.communicate(timeout=max(0.1, self.seconds_left()))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            raise OutOfTime from None
        if process.returncode != 0:
            raise Failed(process.returncode, text)
        return text

    def train(self, name: str, settings: dict, resume: bool = False) -> dict | None:
        """Trains a run to its end. Returns its summary, or None if it diverged."""
        try:
            self.call_program(self.command(name, settings, resume))
        except Failed as failure:
            if failure.diverged():
                return None
            raise
        return json.loads((self.folder / name / "summary.json").read_text())

    def speed(self, model: str, copies: int) -> dict:
        """Measures the tokens/s of several runs of one model at once, while all of them train."""
        settings = trunk_settings(self.scale, 0) if model == "85M" else run_settings(
            self.scale, fixed_batches(self.scale)[0], 0)
        settings |= {"train.max_tokens": 0, "train.max_seconds": 0, "train.max_steps": 1_000_000}
        names = [f"speed-{model}-{copies}-{copy}" for copy in range(copies)]
        processes = []
        for name in names:
            with (self.folder / f"{name}.out").open("w") as output:
                processes.append(subprocess.Popen(self.command(name, settings), cwd=self.folder, stdout=output,
                                                  stderr=subprocess.STDOUT, start_new_session=True))

        def tokens() -> list[int]:
            logs = [lines_of(self.folder / name) for name in names]
            return [json.loads(lines[-1])["consumed_tokens"] if len(lines) >= 4 else 0 for lines in logs]

        def wait_until(condition) -> None:
            while not condition():
                for name, process in zip(names, processes):
                    if process.poll() is not None:
                        raise Failed(process.returncode, (self.folder / f"{name}.out").read_text())
                if self.seconds_left() < 0:
                    raise OutOfTime
                time.sleep(0.1)

        try:
            wait_until(lambda: all(tokens()))
            before, begin = tokens(), time.monotonic()
            wait_until(lambda: time.monotonic() - begin >= self.scale.speed_seconds and
                       all(after > earlier for after, earlier in zip(tokens(), before)))
            seconds = time.monotonic() - begin
            each = [(after - earlier) / seconds for after, earlier in zip(tokens(), before)]
        finally:
            for process in processes:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
            for name in names:
                shutil.rmtree(self.folder / name, ignore_errors=True)
        return {"stage": "G0", "model": model, "copies": copies, "tokens_per_second": round(sum(each)),
                "each": [round(one) for one in each]}

    def checkpoint(self, seed: int, point: int) -> pathlib.Path:
        return self.folder / f"trunk-{seed}-at-{point}"

    def trunk(self, seed: int, point: int) -> dict:
        """Trains the trunk of a seed from where it is to a point, and keeps the checkpoint there for branches."""
        name, kept = f"trunk-{seed}", self.checkpoint(seed, point)
        directory = self.folder / name
        settings = trunk_settings(self.scale, seed) | {"train.max_tokens": point * self.scale.sequence_length}
        summary = self.train(name, settings, resume=directory.exists())
        if summary is None:
            raise Failed(2, "the trunk diverged")
        newest = max((directory / "checkpoints").glob("step-*"))
        partial = self.folder / f"{kept.name}.partial"
        shutil.copytree(newest, partial / "checkpoints" / newest.name, copy_function=os.link)
        shutil.copy(directory / "config.toml", partial)
        text = self.call_program([str(self.program), "gns", "--checkpoint", str(partial), "--json", "--batches", "16",
                                  "--large-batch", str(4 * self.scale.reference), "--device", self.scale.device,
                                  "--precision", self.scale.precision, "--threads", "1"])
        noise = json.loads(text.strip().splitlines()[-1])
        partial.rename(kept)  # now tasks() sees it
        return {"stage": "trunk", "seed": seed, "point": point, "loss": summary["held_out_loss"],
                **{key: noise[key] for key in ("noise_scale", "noise_scale_low", "noise_scale_high")},
                **self.reads(seed, 0, point)}

    def branch(self, branch: dict) -> dict:
        name = f"branch-{branch['case']}"
        kept = self.checkpoint(branch["seed"], branch["point"])
        shutil.copytree(kept / "checkpoints", self.folder / name / "checkpoints", copy_function=os.link)
        shutil.copy(kept / "config.toml", self.folder / name)
        end = branch["point"] + branch["samples"]
        settings = trunk_settings(self.scale, branch["seed"], branch["batch"]) | {
            "optimizer.lr": self.scale.trunk_rate * (branch["batch"] / self.scale.reference) ** branch["exponent"],
            "optimizer.schedule": "wsd", "optimizer.decay_tokens": branch["samples"] // 4 * self.scale.sequence_length,
            "train.max_tokens": end * self.scale.sequence_length}
        summary = self.train(name, settings, resume=True)
        shutil.rmtree(self.folder / name)
        return {"stage": "G1", **branch, "loss": summary and summary["held_out_loss"],
                **self.reads(branch["seed"], branch["point"], end)}

    def whole_run(self, run: dict) -> dict:
        settings = run_settings(self.scale, run["arm"], run["seed"], run["rate"], self.run_seconds)
        summary = self.train(run["case"], settings)
        records = [json.loads(line) for line in lines_of(self.folder / run["case"])]
        shutil.rmtree(self.folder / run["case"])
        changes = [(0, records[0]["global_batch"])]
        changes += [(earlier["consumed_samples"], later["global_batch"]) for earlier, later in zip(records, records[1:])
                    if later["global_batch"] != earlier["global_batch"]]
        evaluations = [(record["elapsed_seconds"], record["held_out_loss"]) for record in records
                       if record["held_out_loss"] is not None]
        return {"stage": "G2", **run, "loss": summary and summary["held_out_loss"],
                "relayouts": summary and summary["relayouts"], "modelled_seconds": records[-1]["elapsed_seconds"],
                "evaluations": evaluations, "batches": changes,
                **self.reads(run["seed"], 0, records[-1]["consumed_samples"])}

    def reads(self, seed: int, first: int, end: int) -> dict:
        """The samples that a run reads, of the shuffle of its seed, and the epochs behind it then."""
        epochs = [round(samples * self.scale.sequence_length / self.train_tokens, 2) for samples in (first, end)]
        return {"shuffle": seed, "reads": [first, end], "epochs": epochs}


def speeds_of(rows: list[dict], model: str) -> dict[int, float]:
    return {row["copies"]: row["tokens_per_second"] for row in rows
            if row["stage"] == "G0" and row["model"] == model}


class Plan:
    """What the rows lack, in the order in which it should run."""

    def __init__(self, bench: Bench, seconds: float):
        self.bench, self.scale = bench, bench.scale
        self.room = seconds - MARGIN  # of a whole call
        self.said: set[str] = set()

    def say_once(self, text: str) -> None:
        if text not in self.said:
            self.said.add(text)
            print(text, flush=True)

    def forecast(self, rows: list[dict], kind: str, share: float, seconds: float) -> float:
        """Returns how many seconds a run will take: as many as the longest finished run of its kind with the same share
        of the card. Before one has finished: `seconds` times SLACK. A run that was interrupted needs more time than it
        had."""
        alike = [row for row in rows if row["stage"] != "failed" and row["kind"] == kind and row["share"] == share]
        known = [row["wall_seconds"] for row in alike if row["stage"] != "interrupted"] or [SLACK * seconds]
        return max(known + [SLACK * row["wall_seconds"] for row in alike if row["stage"] == "interrupted"])

    def width(self, rows: list[dict], model: str, kind: str, tokens: float, room: float) -> tuple[int, float]:
        """Returns how many runs of so many tokens to train at once, and the seconds of each. The width is that with the
        most tokens/s of those in which a run takes at most `room` seconds; or 1, if none does."""
        speeds = speeds_of(rows, model)
        seconds = {copies: self.forecast(rows, kind, 1 / copies, self.scale.startup_seconds + tokens * copies / speed)
                   for copies, speed in speeds.items()}
        fitting = [copies for copies in speeds if seconds[copies] <= room]
        best = max(fitting, key=lambda copies: speeds[copies], default=1)
        return best, seconds[best]

    def tasks(self, rows: list[dict]):
        """Yields the tasks without a result, apart from those that failed too often or fit into no call."""
        given_up = {case: failures[-1] for case, failures in by_case(rows, "failed").items()
                    if len(failures) >= MOST_FAILURES}
        for last in given_up.values():
            self.say_once(f"not begun again after {MOST_FAILURES} failures: {failure_text(last)}")
        for task in self.missing_tasks(rows, finished(rows) | set(given_up)):
            if task.seconds > self.room:
                self.say_once(f"{task.name} needs about {task.seconds:.0f} s, more than --seconds")
            elif task.name not in given_up:
                yield task

    def missing_tasks(self, rows: list[dict], done: set[str]):
        for model in ("85M", "30M"):
            for copies in COPIES:
                if (name := f"speed-{model}-x{copies}") not in done:
                    seconds = self.forecast(rows, name, 1.0, self.scale.startup_seconds + self.scale.speed_seconds)
                    yield Task(name, name, seconds, 1.0,
                               lambda model=model, copies=copies: self.bench.speed(model, copies))
        if all(len(speeds_of(rows, model)) == len(COPIES) for model in ("85M", "30M")):
            if message := differing_trunk(rows):
                self.say_once(message)
            else:
                for seed in self.scale.branch_seeds:
                    yield from self.branch_tasks(rows, done, seed)
            yield from self.run_tasks(rows, done)

    def branch_tasks(self, rows: list[dict], done: set[str], seed: int):
        reached = [point for point in self.scale.points if self.bench.checkpoint(seed, point).exists()]
        begin = max(reached, default=0)
        for point in self.scale.points:
            tasks = list(self.branches_at(rows, done, seed, point))
            if point in reached:
                yield from tasks
            elif point > begin and tasks:
                # The trunk trains alone, since all branches wait for it. It begins if there is time for its branches
                # too; or for one of them, if no call has time for all.
                kind, trunk = self.trunk_forecast(rows, begin, point)
                longest = max(task.seconds for task in tasks)
                everything = trunk + max(longest, sum(task.seconds * task.share for task in tasks))
                needed = everything if everything <= self.room else trunk + longest
                yield Task(f"trunk-s{seed}-at-{point}", kind, needed, 1.0, lambda: self.bench.trunk(seed, point))
                return

    def trunk_forecast(self, rows: list[dict], begin: int, point: int) -> tuple[str, float]:
        kind = f"trunk-from-{begin}-to-{point}"
        tokens = (point - begin) * self.scale.sequence_length
        return kind, self.forecast(rows, kind, 1.0, 2 * self.scale.startup_seconds + tokens / speeds_of(rows, "85M")[1])

    def branches_at(self, rows: list[dict], done: set[str], seed: int, point: int):
        """Yields the missing branches that fit into a call together with their trunk."""
        room = self.room - self.trunk_forecast(rows, 0, point)[1]
        for branch in branches(self.scale, seed, point):
            if branch["case"] in done:
                continue
            kind = f"branch-B{branch['batch']}-n{branch['samples']}"
            tokens = branch["samples"] * self.scale.sequence_length
            width, seconds = self.width(rows, "85M", kind, tokens, room)
            if seconds > room:
                self.say_once(f"{branch['case']} needs about {seconds:.0f} s, more than a call has after the trunk")
            else:
                yield Task(branch["case"], kind, seconds, 1 / width, lambda branch=branch: self.bench.branch(branch))

    def run_tasks(self, rows: list[dict], done: set[str]):
        for run in [*screening_runs(self.scale, rows), *judged_runs(self.scale, rows)]:
            if run["case"] not in done:
                kind = f"run-{run['arm']}-n{run['run_samples']}"
                tokens = run["run_samples"] * self.scale.sequence_length
                width, seconds = self.width(rows, "30M", kind, tokens, self.room)
                yield Task(run["case"], kind, seconds, 1 / width, lambda run=run: self.bench.whole_run(run))


def outcome(future: concurrent.futures.Future) -> dict:
    """Returns the row of a task that has ended, with or without a result."""
    try:
        return future.result()
    except OutOfTime:
        return {"stage": "interrupted"}
    except Failed as failure:
        return {"stage": "failed", "exit_code": failure.exit_code, "output": failure.output}
    except Exception as error:  # continue with the other runs
        return {"stage": "failed", "exit_code": None, "output": [f"{type(error).__name__}: {error}"]}


def run_tasks(bench: Bench, plan: Plan, rows: list[dict], out: pathlib.Path) -> None:
    """Runs what the rows lack, as much at once as the card has room for, until the next task would not fit."""
    running, attempted = {}, set()
    with concurrent.futures.ThreadPoolExecutor(max(COPIES)) as pool:
        while True:
            for task in plan.tasks(rows):
                if task.name in attempted or task.seconds > bench.seconds_left():
                    continue
                if sum(other.share for other, _ in running.values()) + task.share > 1.001:
                    break
                attempted.add(task.name)
                running[pool.submit(task.run)] = (task, time.monotonic())
            if not running:
                return
            ended, _ = concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED)
            for future in ended:
                task, begin = running.pop(future)
                row = {"case": task.name, **outcome(future), "kind": task.kind, "share": task.share,
                       "wall_seconds": round(time.monotonic() - begin, 1), "call": bench.call, "data": bench.data,
                       "device": bench.scale.device, "program": bench.program_hash}
                with out.open("a") as file:
                    file.write(json.dumps(row) + "\n")
                rows.append(row)
                if row["stage"] == "failed":
                    print("failed without a result: " + "\n".join([failure_text(row), *row["output"]]), flush=True)
                else:
                    interrupted = ", interrupted by the end of --seconds" * (row["stage"] == "interrupted")
                    print(f"{task.name}: {row['wall_seconds']} s{interrupted}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=lambda path: pathlib.Path(path).resolve(),
                        default=ROOT / "build-gpu" / "copus", help="built if it does not exist")
    parser.add_argument("--pack", action="store_true", help="write the tokens of data/ into runs/card/")
    parser.add_argument("--out", type=pathlib.Path, help="a new file, which gets a line for each result")
    parser.add_argument("--earlier", type=pathlib.Path, nargs="*", default=[], help="results that are skipped")
    parser.add_argument("--seconds", type=float, default=560, help="of the whole call")
    parser.add_argument("--dry-run", action="store_true", help="small models and few tokens on CPUs")
    parser.add_argument("--report", type=pathlib.Path, nargs="+", help="print the tables of files of results")
    options = parser.parse_args()
    deadline = time.monotonic() + options.seconds
    scale = CPU if options.dry_run else CARD
    files = [path.resolve() for path in (*options.earlier, *(options.report or []))]
    if twice := [str(path) for path in dict.fromkeys(files) if files.count(path) > 1]:
        parser.error(f"name each file of results once: {', '.join(twice)}")
    if options.report:
        rows = read_rows(options.report)
        print(report(CPU if rows and rows[0]["device"] == "cpu" else CARD, rows))
        return 0
    if options.pack:
        pack(TOKENS)
        return 0
    if options.out is None:
        parser.error("--out: name the file of results")
    if not TOKENS.is_file():
        parser.error(f"there is no {TOKENS}: make it with --pack on a machine that has data/ (README.md)")
    rows = read_rows(options.earlier)
    try:
        options.out.open("x").close()
    except OSError as error:
        parser.error(f"--out: cannot create the new file {options.out}: {error.strerror}")
    if not options.program.is_file():
        if options.dry_run:
            parser.error(f"--program: there is no {options.program}; build copus and copus-torch first")
        build(options.program)
    with tempfile.TemporaryDirectory(prefix="copus-card-") as folder:
        bench = Bench(options.program, scale, pathlib.Path(folder), TOKENS, deadline)
        if any((row["data"], row["device"]) != (bench.data, scale.device) for row in rows):
            parser.error("--earlier: these results are from other tokens or another kind of device")
        run_tasks(bench, Plan(bench, options.seconds), rows, options.out)
    print(report(scale, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
