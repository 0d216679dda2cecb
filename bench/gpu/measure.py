#!/usr/bin/env python3
"""Compares training steps of Copus with PyTorch's (transformers; eager, torch.compile) on one GPU, in a given time.

All sides do the same work: the model of a config.json with random weights, computed in bf16, with fp32 weights,
gradients and AdamW moments, and clipping. A step has equally many micro-batches of the same size. The sides take turns,
each in a process of its own; a waiting process releases the GPU's memory. The micro-batch is the largest power of two
that fits both eager PyTorch and Copus, up to a limit. Cases are measured in order of importance; a case for which too
little time is left is reported as not measured. PyTorch runs with its fast settings, and Copus with the deterministic
settings of training. Prints tables last; --out writes everything as JSON.
"""

import argparse
import contextlib
import json
import math
import os
import pathlib
import selectors
import signal
import subprocess
import sys
import tempfile
import time

from results import ROOT, Budget, Case, cases_by_importance, compare, report_lines, summarize_side

# Approximate GPU memory of a waiting process: the libraries' own.
BYTES_OF_A_PROCESS = 2 << 30


def progress(text: str) -> None:
    print(text, end="", file=sys.stderr, flush=True)


class SideFailed(Exception):
    def __init__(self, message: str, said: str = ""):
        super().__init__(message)
        self.is_out_of_memory = "out of memory" in (said or message)


class Stopped(Exception):
    """Stopped by a signal; what was measured so far is still reported."""


def stop(*_) -> None:
    raise Stopped


class LineProcess:
    """A program that answers lines with lines of JSON."""

    def __init__(self, command: list[str], environment: dict):
        self.errors = tempfile.TemporaryFile(mode="w+", encoding="utf-8")
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, env=os.environ | environment
        )
        self.pending = b""

    def ask(self, line: str, seconds: float) -> dict:
        try:
            self.process.stdin.write(line.encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # its end is detected below
        return self.read(seconds)

    def read(self, seconds: float) -> dict:
        deadline = time.monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while b"\n" not in self.pending:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    self.end()
                    raise SideFailed(f"no answer within {seconds:.0f} s")
                received = os.read(self.process.stdout.fileno(), 1 << 16)
                if not received:
                    code = self.process.wait()
                    self.errors.seek(0)
                    said = self.errors.read()
                    last = " ".join(said.strip().splitlines()[-3:])[-300:]
                    raise SideFailed(f"ended with exit code {code}: {last}", said)
                self.pending += received
        line, _, self.pending = self.pending.partition(b"\n")
        answer = json.loads(line)
        if "error" in answer:
            raise SideFailed(answer["error"])
        return answer

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.errors):
            with contextlib.suppress(BrokenPipeError):
                stream.close()


class PytorchSide:
    def __init__(self, compile_scope: str, arguments: argparse.Namespace, reserve_bytes: int):
        self.compile_scope, self.device = compile_scope, arguments.device
        self.environment = {"OMP_NUM_THREADS": str(arguments.threads)} if arguments.threads else {}
        self.reserve_bytes = reserve_bytes if arguments.device != "cpu" else 0
        self.process = None
        self.start()

    def start(self) -> None:
        if self.process is None or self.process.process.poll() is not None:
            worker = str(pathlib.Path(__file__).with_name("worker.py"))
            options = ["--device", self.device, "--reserve-bytes", str(self.reserve_bytes)]
            self.process = LineProcess([sys.executable, worker, *options], self.environment)

    def ask(self, seconds: float, **request) -> dict:
        return self.process.ask(json.dumps(request), seconds)

    def machine(self) -> dict:
        return self.ask(120, do="machine")

    def load(self, case: Case, micro_batch: int, tokens_per_step: int, seconds: float) -> dict:
        self.start()
        loaded = self.ask(seconds, do="load", config=str(case.config_path()), sequence=case.sequence,
                          micro_batch=micro_batch, tokens_per_step=tokens_per_step, precision=case.precision,
                          compile=self.compile_scope)
        self.ask(60, do="park")
        return loaded

    def run(self, steps: int, seconds: float) -> dict:
        result = self.ask(seconds, do="run", steps=steps)
        self.ask(60, do="park")
        return result

    def unload(self) -> None:
        if self.process.process.poll() is None:
            self.ask(60, do="unload")

    def end(self) -> None:
        self.process.end()


class CopusSide:
    def __init__(self, arguments: argparse.Namespace):
        self.program, self.device, self.threads = arguments.copus, arguments.device, arguments.threads
        self.process = None

    def load(self, case: Case, micro_batch: int, tokens_per_step: int, seconds: float) -> dict:
        started = time.monotonic()
        while True:
            self.unload()
            micro_batches = max(1, tokens_per_step // (micro_batch * case.sequence))
            precision = "fp32" if case.precision == "fp32" else "bf16"
            options = {"--device": self.device, "--model": case.config_path(), "--sequence-length": case.sequence,
                       "--micro-batch": micro_batch, "--micro-batches": micro_batches, "--precision": precision,
                       "--threads": self.threads}
            words = [str(word) for pair in options.items() for word in pair]
            self.process = LineProcess([self.program, "bench", "step", "--serve", *words], {})
            try:
                self.process.read(seconds)
                break
            except SideFailed as failure:
                if not failure.is_out_of_memory or micro_batch == 1:
                    raise
            micro_batch //= 2
        self.process.ask("release", 60)
        return {"micro_batch": micro_batch, "seconds": time.monotonic() - started}

    def run(self, steps: int, seconds: float) -> dict:
        result = self.process.ask(f"run {steps}", seconds)
        self.process.ask("release", 60)
        return result

    def report(self, steps: int, seconds: float) -> dict:
        result = self.process.ask(f"report {steps}", seconds)
        self.process.ask("release", 60)
        return result

    def unload(self) -> None:
        if self.process is not None:
            self.process.end()
            self.process = None

    def end(self) -> None:
        self.unload()


def start_sides(arguments: argparse.Namespace, cases: list[Case]) -> dict:
    names = [name for name in ("eager", "layers", "model") if any(name in case.sides for case in cases)]
    reserve = (len(names) + 1) * BYTES_OF_A_PROCESS
    scopes = {"eager": "none"}
    pytorch = {name: PytorchSide(scopes.get(name, name), arguments, reserve) for name in names}
    return {"ours": CopusSide(arguments), **pytorch}


class Measurement:
    def __init__(self, arguments: argparse.Namespace, cases: list[Case], sides: dict):
        self.arguments, self.cases, self.sides = arguments, cases, sides
        self.started = time.monotonic()
        self.budget = Budget(arguments.seconds, self.started)
        self.results = {"machine": None, "budget_seconds": arguments.seconds, "cases": [], "not_measured": []}

    def patience(self) -> float:
        """Seconds to wait for one answer: compiling takes long, but the whole must end."""
        return min(150.0, max(20.0, self.budget.remaining(time.monotonic()) + 20))

    def measure(self) -> dict:
        self.results["machine"] = next(side for name, side in self.sides.items() if name != "ours").machine()
        waiting = list(self.cases)
        try:
            while waiting:
                if self.budget.fits(waiting[0], time.monotonic()):
                    self.results["cases"].append(self.measure_case(waiting[0]))
                else:
                    self.leave_out(waiting[0], f"{self.budget.remaining(time.monotonic()):.0f} s were left")
                waiting.pop(0)
        except Stopped:
            for case in waiting:
                self.leave_out(case, "stopped before its end")
        self.results["seconds"] = time.monotonic() - self.started
        return self.results

    def leave_out(self, case: Case, reason: str) -> None:
        self.results["not_measured"].append(
            {"model": case.model, "sequence": case.sequence, "precision": case.precision, "sides": case.sides,
             "name": case.name(), "reason": reason}
        )

    def load(self, case: Case) -> tuple[dict, dict, float]:
        """Loads a case. Returns the answers of the sides that could begin, the errors of the others, and the
        approximate seconds of a step."""
        tokens = self.arguments.tokens_per_step
        wanted = max(1, self.arguments.micro_batch_tokens // case.sequence)
        loaded, failures = {}, {}

        def load_side(name: str) -> None:
            progress(f" {name} ...")
            failures.pop(name, None)
            try:
                loaded[name] = self.sides[name].load(case, wanted, tokens, self.patience())
            except SideFailed as failure:
                loaded.pop(name, None)
                failures[name] = str(failure)

        # Eager needs most memory, so it finds the micro-batch that the others use.
        for name in sorted(case.sides, key=("eager", "ours", "layers", "model").index):
            load_side(name)
            if name in loaded and loaded[name]["micro_batch"] < wanted:
                wanted = loaded[name]["micro_batch"]
                for earlier in [other for other in loaded if loaded[other]["micro_batch"] > wanted]:
                    load_side(earlier)
        step = min((side["seconds_per_step"] for side in loaded.values() if "seconds_per_step" in side), default=1.0)
        return loaded, failures, step

    def measure_case(self, case: Case) -> dict:
        begun = time.monotonic()
        progress(f"{case.name()}:")
        loaded, failures, step_seconds = self.load(case)
        steps = max(2, math.ceil(self.arguments.turn_seconds / step_seconds))
        progress(f" rounds of {steps} steps: ")
        turns = {name: [] for name in loaded}
        for completed in range(self.arguments.rounds):
            round_begun = time.monotonic()
            for name in list(turns):
                try:
                    turns[name].append(self.sides[name].run(steps, self.patience()))
                except SideFailed as failure:
                    failures[name] = str(failure)
                    del turns[name]
            progress(".")
            now = time.monotonic()
            if completed + 1 == Budget.LEAST_ROUNDS:
                self.budget.learn(case, now - begun)
            if completed + 1 >= Budget.LEAST_ROUNDS and self.budget.remaining(now) < 2 * (now - round_begun):
                break
        report = None
        if "ours" in turns:
            try:
                report = self.sides["ours"].report(steps, self.patience())
            except SideFailed as failure:
                progress(f" no report of the parts: {failure}")
        for name in loaded:
            self.sides[name].unload()
        progress("\n")
        return self.describe(case, loaded, failures, turns, report)

    def describe(self, case: Case, loaded: dict, failures: dict, turns: dict, report: dict | None) -> dict:
        sides = {name: {"error": failures[name]} for name in case.sides if name in failures}
        for name, results in turns.items():
            if not results:
                continue
            micro_batch = loaded[name]["micro_batch"]
            micro_batches = max(1, self.arguments.tokens_per_step // (micro_batch * case.sequence))
            peak = report["peak_memory_bytes"] if name == "ours" and report else results[-1].get("peak_memory_bytes")
            sides[name] = {
                "micro_batch": micro_batch,
                "micro_batches": micro_batches,
                **summarize_side(case, self.results["machine"], micro_batches * micro_batch * case.sequence,
                                 [result["seconds_per_step"] for result in results]),
                "peak_memory_bytes": peak,
                "preparation_seconds": loaded[name]["seconds"],
            }
        return {
            "model": case.model,
            "sequence": case.sequence,
            "precision": case.precision,
            "name": case.name(),
            "parameters": case.parameters(),
            "flops_per_token": case.flops_per_token(),
            "sides": {name: sides[name] for name in case.sides if name in sides},
            **compare(sides),
            "report": report,
        }


def chosen_cases(arguments: argparse.Namespace) -> list[Case]:
    if arguments.shapes == ["tiny"]:
        return [Case("tiny-llama", 32, "fp32", ("ours", "eager"))]
    cases = [case for case in cases_by_importance() if not arguments.shapes or case.model in arguments.shapes]
    sequences = arguments.sequence_lengths or sorted({case.sequence for case in cases})
    return [case for case in cases if case.sequence in sequences]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--copus", default=str(ROOT / "build/copus"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=240.0, help="for everything, about")
    models = sorted({case.model for case in cases_by_importance()})
    parser.add_argument("--shapes", nargs="+", choices=[*models, "tiny"], help="only these models; tiny: to try it out")
    parser.add_argument("--sequence-lengths", nargs="+", type=int, help="only these lengths")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--turn-seconds", type=float, default=1.5, help="what a side measures in a turn, at least")
    parser.add_argument("--tokens-per-step", type=int, default=32768)
    parser.add_argument("--micro-batch-tokens", type=int, default=16384, help="tried first, then halves of it")
    parser.add_argument("--threads", type=int, default=0, help="of each side; 0: as many as they choose")
    parser.add_argument("--out", type=pathlib.Path, help="the file that gets everything as JSON")
    arguments = parser.parse_args()
    if not pathlib.Path(arguments.copus).is_file():
        parser.error(f"{arguments.copus} is missing: build it first, or name it with --copus")
    cases = chosen_cases(arguments)
    if not cases:
        parser.error("--shapes and --sequence-lengths leave nothing to measure")
    if arguments.shapes == ["tiny"]:
        arguments.tokens_per_step, arguments.micro_batch_tokens = 128, 64

    sides = start_sides(arguments, cases)
    signal.signal(signal.SIGTERM, stop)
    try:
        results = Measurement(arguments, cases, sides).measure()
    except (SideFailed, Stopped) as failure:
        sys.exit(f"error: nothing was measured: {failure or 'stopped'}")
    finally:
        for side in sides.values():
            side.end()
    if arguments.out:
        arguments.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print("\n".join(report_lines(results)))


if __name__ == "__main__":
    main()
