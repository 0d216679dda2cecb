#!/usr/bin/env python3
"""Compares a training step of Copus with PyTorch's (transformers' LlamaForCausalLM, eager and torch.compile).

Every side is a process of its own with the same shape, precision (fp32), threads and optimizer (AdamW, clipping). The
sides take turns: ours, eager, compile, ours, ... The waiting sides block on their stdin. Because of the turns, changes
of the machine's speed affect all sides equally. In each round, our tokens/s are divided by theirs. Prints the median,
the smallest and the largest of these ratios. Run nothing else meanwhile.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

from shapes import SHAPES, Shape

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SIDES = ("ours", "eager", "compile")


class Side:
    """One warmed-up process that runs training steps on request."""

    def __init__(self, name: str, shape: Shape, threads: int):
        self.name = name
        if name == "ours":
            command = [str(ROOT / "build/copus"), "bench", "step", "--serve", "--precision", "fp32"]
        else:
            command = [sys.executable, str(pathlib.Path(__file__).with_name("step_worker.py")), "--mode", name]
        command += ["--threads", str(threads), *shape.options()]
        environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.read_answer()
        self.forget_peak_memory()

    def read_answer(self) -> dict:
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"error: the side '{self.name}' ended with exit code {self.process.wait()}; its message is above")
        return json.loads(line)

    def run(self, steps: int) -> float:
        """Seconds per step, the median of `steps`."""
        self.process.stdin.write(f"run {steps}\n")
        self.process.stdin.flush()
        return self.read_answer()["seconds_per_step"]

    def forget_peak_memory(self) -> None:
        """Resets the peak, because start-up and compilation are not part of a step (proc(5): 5 resets the peak resident
        set size)."""
        pathlib.Path(f"/proc/{self.process.pid}/clear_refs").write_text("5", encoding="ascii")

    def peak_memory_bytes(self) -> int:
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        fields = dict(line.split(":", 1) for line in status.splitlines())
        return int(fields["VmHWM"].split()[0]) * 1024

    def quit(self) -> None:
        self.process.stdin.write("quit\n")
        self.process.stdin.close()
        self.process.wait()


def measure(shape: Shape, names: list[str], threads: int, rounds: int, seconds: float) -> dict:
    def progress(text: str) -> None:
        print(text, end="", file=sys.stderr, flush=True)

    sides = []
    for name in names:
        progress(f"  warming up {name} ... ")
        sides.append(Side(name, shape, threads))
    # A turn has as many steps as the fastest side makes in `seconds`, so that the processor reaches its full clock
    # frequency.
    steps = max(2, round(seconds / min(side.run(1) for side in sides)))
    progress(f"\n  {rounds} rounds of {steps} steps each: ")
    seconds_per_step = {name: [] for name in names}
    for _ in range(rounds):
        for side in sides:
            seconds_per_step[side.name].append(side.run(steps))
        progress(".")
    progress("\n")

    result = {"steps_per_round": steps, "rounds": rounds, "sides": {}}
    for side in sides:
        tokens_per_second = shape.tokens_per_step() / statistics.median(seconds_per_step[side.name])
        result["sides"][side.name] = {
            "seconds_per_step": seconds_per_step[side.name],
            "tokens_per_second": tokens_per_second,
            "gflops": tokens_per_second * shape.training_flops_per_token() / 1e9,
            "peak_memory_bytes": side.peak_memory_bytes(),
        }
        side.quit()
    for name in names:
        if name != "ours" and "ours" in names:
            pairs = zip(seconds_per_step[name], seconds_per_step["ours"])
            ratios = [theirs / ours for theirs, ours in pairs]
            result[f"ratio_{name}"] = statistics.median(ratios)
            result[f"ratio_{name}_spread"] = [min(ratios), max(ratios)]
    return result


def print_table(name: str, shape: Shape, result: dict) -> None:
    print(
        f"Shape ({name}): {shape.layers} layers, hidden {shape.hidden}, {shape.heads} heads, {shape.kv_heads} kv heads, "
        f"ffn {shape.ffn}, vocab {shape.vocab}, sequence {shape.sequence_length}, micro-batch {shape.micro_batch}"
    )
    print(f"  {'':8} {'s/step':>8} {'tokens/s':>10} {'GFLOP/s':>8} {'peak MiB':>9}   ours over it, in tokens/s")
    for side, numbers in result["sides"].items():
        line = (
            f"  {side:8} {statistics.median(numbers['seconds_per_step']):8.3f} {numbers['tokens_per_second']:10,.0f} "
            f"{numbers['gflops']:8.1f} {numbers['peak_memory_bytes'] / 2**20:9,.0f}"
        )
        if f"ratio_{side}" in result:
            low, high = result[f"ratio_{side}_spread"]
            line += f"   {result[f'ratio_{side}']:.2f}x ({low:.2f} .. {high:.2f})"
        print(line)
    print(flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, action="append", help="default: every shape")
    parser.add_argument("--only", default=",".join(SIDES), help="sides to run, separated by commas (default: all)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2.0, help="how long a side's turn lasts, about")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    arguments = parser.parse_args()
    names = arguments.only.split(",")
    if unknown := set(names) - set(SIDES):
        parser.error(f"--only: {', '.join(sorted(unknown))} is none of {', '.join(SIDES)}")
    if "ours" in names and not (ROOT / "build/copus").is_file():
        parser.error("build/copus is missing: run `make build`, or measure PyTorch alone with --only eager,compile")

    results = {}
    for name in arguments.shape or SHAPES:
        print(f"Shape ({name})", file=sys.stderr)
        results[name] = measure(SHAPES[name], names, arguments.threads, arguments.rounds, arguments.seconds)
        if not arguments.json:
            print_table(name, SHAPES[name], results[name])
    if arguments.json:
        print(json.dumps({"precision": "fp32", "threads": arguments.threads, "shapes": results}))


if __name__ == "__main__":
    main()
