#!/usr/bin/env python3
"""Runs real NCCL between several ranks on one GPU, case by case, and appends what each case did to a file of JSON lines
as soon as the case ends. A later call skips the cases that the file has, so calls of ten minutes add up.

    python3 bench/gpu/nccl.py --nccl-source SOURCE --out nccl.jsonl --seconds 570   # the next cases that fit
    python3 bench/gpu/nccl.py --report nccl.jsonl                                   # the table of all calls
    python3 bench/gpu/nccl.py --dry-run --out dry.jsonl --seconds 570               # the same cases on CPUs

NCCL allows several ranks on one GPU from 2.30 (NCCL_MULTI_RANK_GPU_ENABLE=1, NCCL_MAX_CTAS=2 for more than two), and
Copus uses it there where COPUS_NCCL_ON_SHARED_GPUS is 1. SOURCE is a checkout of NCCL, which the first case builds.
"""

import argparse
import dataclasses
import json
import math
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
STEPS = 24
# Between layouts losses differ by the order of sums alone: a few float32 roundings, carried through a few steps.
LOSS_TOLERANCE = 2e-3

LAYOUTS = {
    "p2": {"pipeline_parallel": 2},
    "p2-interleaved": {"pipeline_parallel": 2, "virtual_stages": 2, "schedule": "interleaved"},
    "t2": {"tensor_parallel": 2},
    "d2-zero1": {"data_parallel": 2, "zero_stage": 1},
    "d2-zero2": {"data_parallel": 2, "zero_stage": 2},
    "d2-zero3": {"data_parallel": 2, "zero_stage": 3},
    "p4": {"pipeline_parallel": 4},
    "p4-zb": {"pipeline_parallel": 4, "schedule": "zb-h1"},
    "d2t2p2": {"data_parallel": 2, "tensor_parallel": 2, "pipeline_parallel": 2, "zero_stage": 1},
}


@dataclasses.dataclass
class Case:
    name: str
    seconds: float  # after which it counts as hung
    run: object  # takes a Bench, returns a dict of what to keep


@dataclasses.dataclass
class Outcome:
    code: int | None  # None: stopped at the limit
    seconds: float
    text: str


def ranks_of(layout: dict) -> int:
    return math.prod(layout.get(f"{axis}_parallel", 1) for axis in ("data", "tensor", "pipeline"))


def settings_of(layout: dict) -> list[str]:
    settings = []
    for key in ("data_parallel", "tensor_parallel", "pipeline_parallel", "virtual_stages", "schedule", "zero_stage"):
        usual = {"schedule": '"1f1b"', "zero_stage": 0}.get(key, 1)
        value = layout.get(key, usual)
        settings += ["--set", f"parallel.{key}={value}"]
    return settings


def largest_difference(losses: list[float], others: list[float]) -> float:
    if not losses or len(losses) != len(others):
        return math.inf
    return max(abs(a - b) / max(abs(a), abs(b), 1e-9) for a, b in zip(losses, others))


def last_lines(text: str, count: int = 12) -> str:
    return "\n".join(text.strip().splitlines()[-count:])


def descendants(pid: int) -> list[int]:
    found = []
    for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        found += [int(child), *descendants(int(child))]
    return found


class Bench:
    def __init__(self, options: argparse.Namespace, folder: pathlib.Path):
        self.program = str(options.program)
        self.dry = options.dry_run
        self.nccl_source = options.nccl_source
        self.folder = folder
        self.device = "cpu" if self.dry else "cuda"
        self.cpu_losses: list[float] = []
        self.write_run()

    def write_run(self) -> None:
        text = "".join(f"{i} sheep went over the bridge, and {i * 7 % 31} came back. " for i in range(6000))
        (self.folder / "corpus.txt").write_text(text)
        (self.folder / "run.toml").write_text(
            f"""[model]
architecture = "llama"
vocab_size = 256
hidden_size = 64
intermediate_size = 176
num_hidden_layers = 4
num_attention_heads = 4
num_key_value_heads = 2
max_position_embeddings = 64
[data]
train = "corpus.txt"
[train]
sequence_length = 64
threads = 1
global_batch = 16
micro_batch = 2
max_steps = {STEPS}
precision = "fp32"
[evaluate]
interval = 0
[optimizer]
lr = 1e-3
[heal]
enabled = false
"""
        )

    def environment(self, ranks: int, extra: dict | None = None) -> dict:
        environment = dict(os.environ)
        if not self.dry:
            environment["COPUS_NCCL_ON_SHARED_GPUS"] = "1"
            environment.setdefault("NCCL_MULTI_RANK_GPU_ENABLE", "1")
            if ranks > 2:
                environment.setdefault("NCCL_MAX_CTAS", "2")
            if self.nccl_source:
                library = pathlib.Path(self.nccl_source) / "build" / "lib"
                environment["LD_LIBRARY_PATH"] = f"{library}:{environment.get('LD_LIBRARY_PATH', '')}"
                environment["LD_PRELOAD"] = str(library / "libnccl.so.2")
        environment.update(extra or {})
        return environment

    def call(self, command: list[str], limit: float, environment: dict | None = None) -> Outcome:
        """Runs it in a process group of its own, which is killed at the limit: a hang is an outcome."""
        begin = time.monotonic()
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                   env=environment, cwd=self.folder, start_new_session=True)
        try:
            text, _ = process.communicate(timeout=limit)
            return Outcome(process.returncode, time.monotonic() - begin, text)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            text, _ = process.communicate()
            return Outcome(None, time.monotonic() - begin, text)

    def train_command(self, layout: dict, name: str, device: str, more: list[str]) -> list[str]:
        shutil.rmtree(self.folder / name, ignore_errors=True)
        return [self.program, "train", "run.toml", "--run-dir", name, "--set", f"train.device={device}",
                "--set", "parallel.wait_limit=60", *settings_of(layout), *more]

    def losses(self, name: str) -> list[float]:
        path = self.folder / name / "run.jsonl"
        return [json.loads(line)["loss"] for line in path.read_text().splitlines()] if path.is_file() else []

    def train(self, layout: dict, name: str, limit: float, extra: dict | None = None,
              more: list[str] | None = None) -> dict:
        command = self.train_command(layout, name, self.device, more or [])
        outcome = self.call(command, limit, self.environment(ranks_of(layout), extra))
        connects = re.search(r"connects +(.*)", outcome.text)
        losses = self.losses(name)
        kept = {"code": outcome.code, "command_seconds": round(outcome.seconds, 2), "steps": len(losses),
                "last_loss": losses[-1] if losses else None, "connects": connects.group(1) if connects else None}
        if outcome.code != 0:
            kept["says"] = last_lines(outcome.text)
        return kept

    def reference(self) -> list[float]:
        if not self.cpu_losses:
            outcome = self.call(self.train_command({}, "cpu", "cpu", []), 120, self.environment(1))
            if outcome.code != 0:
                raise RuntimeError(f"the reference on a CPU failed: {last_lines(outcome.text)}")
            self.cpu_losses = self.losses("cpu")
        return self.cpu_losses


def build_nccl(bench: Bench) -> dict:
    if bench.dry or not bench.nccl_source:
        return {"code": 0, "says": "no source given: the library of the system"}
    command = ["make", f"-j{os.cpu_count()}", "-C", str(bench.nccl_source), "src.build",
               "NVCC_GENCODE=-gencode=arch=compute_90,code=sm_90"]
    outcome = bench.call(command, 540)
    return {"code": outcome.code, "command_seconds": round(outcome.seconds, 1), "says": last_lines(outcome.text, 3)}


def selftest(ranks: int, limit: float, extra: dict | None = None):
    def run(bench: Bench) -> dict:
        command = [bench.program, "selftest", "--ranks", str(ranks), "--device", bench.device, "--seconds",
                   str(int(limit * 0.6))]
        outcome = bench.call(command, limit, bench.environment(ranks, extra))
        return {"code": outcome.code, "command_seconds": round(outcome.seconds, 1), "says": last_lines(outcome.text)}

    return run


def layout_case(name: str):
    def run(bench: Bench) -> dict:
        reference = bench.reference()
        kept = bench.train(LAYOUTS[name], name, 75)
        kept["difference_from_cpu"] = largest_difference(bench.losses(name), reference)
        kept["passed"] = kept["code"] == 0 and kept["difference_from_cpu"] <= LOSS_TOLERANCE
        return kept

    return run


def switches(bench: Bench) -> dict:
    """Moves between layouts of four ranks, checking the state's hash before and after each move."""
    base = {"virtual_stages": 1, "schedule": "1f1b", "sequence_parallel": False, "recompute": "none",
            "global_batch": 16, "micro_batch": 2}
    lines = []
    for step, (d, t, p, zero) in enumerate([(2, 1, 2, 1), (1, 2, 2, 0), (4, 1, 1, 3), (1, 1, 4, 0), (2, 2, 1, 2)]):
        layout = {"data_parallel": d, "tensor_parallel": t, "pipeline_parallel": p, "zero_stage": zero}
        lines.append(json.dumps({"after_step": 4 * step + 4, "configuration": layout | base}))
    (bench.folder / "script.jsonl").write_text("\n".join(lines) + "\n")
    # Decisions are the script's; a cluster has to be described all the same.
    more = ["--set", "cluster.ranks_per_node=4", "--set",
            "cluster.device={ matmul_teraflops = 100.0 }", "--set",
            "cluster.within_node={ latency_microseconds = 5.0, gigabytes_per_second = 4.0 }", "--set",
            "cluster.between_nodes={ latency_microseconds = 5.0, gigabytes_per_second = 4.0 }", "--set",
            'adapt.policy="script"', "--set", 'adapt.file="script.jsonl"', "--set", "adapt.verify=true", "--set",
            "adapt.zero_stages=[0, 1, 2, 3]", "--set", "adapt.max_tensor_parallel=4"]
    kept = bench.train({"data_parallel": 4}, "switches", 110, more=more)
    kept["difference_from_cpu"] = largest_difference(bench.losses("switches"), bench.reference())
    decisions = (bench.folder / "switches" / "decisions.jsonl")
    outcomes = [line for line in decisions.read_text().splitlines() if '"outcome"' in line] if decisions.is_file() else []
    kept["switches"] = sum('"moved"' in line for line in outcomes)
    kept["others"] = [line[:400] for line in outcomes if '"moved"' not in line]
    kept["passed"] = kept["code"] == 0 and kept["switches"] == 5 and kept["difference_from_cpu"] <= LOSS_TOLERANCE
    return kept


def bits(first: int, last: int):
    def run(bench: Bench) -> dict:
        seen = []
        for number in range(first, last):
            name = f"bits-{number}"
            kept = bench.train(LAYOUTS["d2t2p2"], name, 60)
            if kept["code"] != 0:
                return kept | {"runs": number - first}
            seen.append(bench.losses(name))
        return {"code": 0, "runs": len(seen), "distinct": len({tuple(losses) for losses in seen}),
                "losses": seen[0], "passed": all(losses == seen[0] for losses in seen)}

    return run


def two_nodes(bench: Bench) -> dict:
    """Eight ranks as another launcher would start them, half of them on a node of its own in NCCL's eyes."""
    ranks = 8
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = bench.train_command(LAYOUTS["d2t2p2"], "two-nodes", bench.device, [])
    processes, begin = [], time.monotonic()
    for rank in range(ranks):
        extra = {"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(ranks),
                 "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        if not bench.dry:
            extra |= {"NCCL_HOSTID": f"node{rank // 4}", "NCCL_SOCKET_IFNAME": "lo"}
        output = (bench.folder / f"two-nodes-{rank}.txt").open("w")
        processes.append(subprocess.Popen(command, stdout=output, stderr=output, cwd=bench.folder,
                                          env=bench.environment(ranks, extra)))
    codes = []
    for process in processes:
        try:
            codes.append(process.wait(timeout=max(1.0, begin + 110 - time.monotonic())))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            codes.append(None)
    kept = {"code": next((code for code in codes if code != 0), 0), "codes": codes,
            "command_seconds": round(time.monotonic() - begin, 1),
            "says": last_lines((bench.folder / "two-nodes-0.txt").read_text())}
    kept["difference_from_cpu"] = largest_difference(bench.losses("two-nodes"), bench.reference())
    kept["passed"] = kept["code"] == 0 and kept["difference_from_cpu"] <= LOSS_TOLERANCE
    return kept


def connections(number: int):
    """With few hardware queues a pipeline is refused (exit code 2), and not left to hang."""

    def run(bench: Bench) -> dict:
        kept = bench.train(LAYOUTS["p4"], f"connections-{number}", 90, {"CUDA_DEVICE_MAX_CONNECTIONS": str(number)})
        kept["passed"] = kept["code"] == (0 if bench.dry or number >= 8 else 2)
        return kept

    return run


def struck(name: str, which: int):
    """A rank is killed or stopped in the middle of training: the others end within seconds, and say who it was."""

    def run(bench: Bench) -> dict:
        run_name = f"struck-{name}"
        command = bench.train_command(LAYOUTS["d2t2p2"], run_name, bench.device, ["--set", "train.max_steps=100000"])
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                   cwd=bench.folder, env=bench.environment(8), start_new_session=True)
        begin = time.monotonic()
        while len(bench.losses(run_name)) < 3 and process.poll() is None and time.monotonic() < begin + 60:
            time.sleep(0.05)
        victims = descendants(process.pid) if process.poll() is None else []
        if not victims:
            process.kill()
            return {"code": None, "says": last_lines(process.communicate()[0]), "passed": False}
        struck_at = time.monotonic()
        os.kill(victims[-1], which)
        try:
            text, _ = process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            text, _ = process.communicate()
            return {"code": None, "says": last_lines(text), "passed": False}
        return {"code": process.returncode, "seconds_to_the_end": round(time.monotonic() - struck_at, 2),
                "says": last_lines(text, 3), "passed": process.returncode == 1}

    return run


def cases() -> list[Case]:
    """In the order of what is worth most, should there be no time for all."""
    listed = [Case("build-nccl", 550, build_nccl), Case("selftest-2", 90, selftest(2, 90))]
    listed += [Case(f"layout-{name}", 200, layout_case(name)) for name in LAYOUTS]
    listed += [
        Case("switches", 240, switches),
        Case("two-nodes", 240, two_nodes),
        *[Case(f"connections-{number}", 100, connections(number)) for number in (1, 8, 32)],
        Case("killed", 130, struck("killed", signal.SIGKILL)),
        Case("stopped", 130, struck("stopped", signal.SIGSTOP)),
        Case("selftest-4", 100, selftest(4, 100)),
        Case("selftest-8", 150, selftest(8, 150)),
        *[Case(f"bits-{first}", 310, bits(first, first + 5)) for first in (0, 5, 10, 15)],
    ]
    return listed


def read_results(path: pathlib.Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def has_passed(result: dict) -> bool:
    return result.get("passed", result.get("code") == 0)


def report(results: list[dict]) -> str:
    lines = [f"{'case':18} {'exit':>5} {'seconds':>8} {'last loss':>10} {'from CPU':>9}  "]
    for result in results:
        code = "hung" if result.get("code") is None else str(result["code"])
        loss, difference = result.get("last_loss"), result.get("difference_from_cpu")
        lines.append(f"{result['case']:18} {code:>5} {result['seconds']:8.1f} "
                     f"{'' if loss is None else format(loss, '10.5f'):>10} "
                     f"{'' if difference is None else format(difference, '9.1e'):>9}  "
                     f"{'passed' if has_passed(result) else 'FAILED'}")
    all_bits = [result["losses"] for result in results if result["case"].startswith("bits-") and "losses" in result]
    if all_bits:
        runs = sum(result["runs"] for result in results if result["case"].startswith("bits-"))
        lines.append(f"{runs} runs of one layout: "
                     f"{'bitwise alike' if all(one == all_bits[0] for one in all_bits) else 'they DIFFER'}")
    names = {result["case"] for result in results}
    missing = [case.name for case in cases() if case.name not in names]
    lines.append(f"{sum(map(has_passed, results))} of {len(results)} passed; not run: {', '.join(missing) or 'none'}")
    return "\n".join(lines)


def run_cases(options: argparse.Namespace) -> None:
    deadline = time.monotonic() + options.seconds
    done = {result["case"] for result in read_results(options.out)}
    with tempfile.TemporaryDirectory(prefix="copus-nccl-") as folder:
        bench = Bench(options, pathlib.Path(folder))
        for case in cases():
            if case.name in done or (options.only and not re.search(options.only, case.name)):
                continue
            if deadline - time.monotonic() < min(case.seconds, 60 if case.name != "build-nccl" else 300):
                continue
            begin = time.monotonic()
            try:
                kept = case.run(bench)
            except Exception as error:  # the next cases go on
                kept = {"code": None, "says": f"{type(error).__name__}: {error}", "passed": False}
            result = {"case": case.name, "seconds": round(time.monotonic() - begin, 1), "dry": options.dry_run, **kept}
            with options.out.open("a") as out:
                out.write(json.dumps(result) + "\n")
            print(f"{case.name}: {'passed' if has_passed(result) else 'FAILED'} in {result['seconds']} s", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=pathlib.Path, default=ROOT / "build" / "copus")
    parser.add_argument("--nccl-source", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--seconds", type=float, default=570)
    parser.add_argument("--only", help="a regular expression of case names")
    parser.add_argument("--dry-run", action="store_true", help="on CPUs, without NCCL: tries this program out")
    parser.add_argument("--report", type=pathlib.Path, help="print the table of a file of results")
    options = parser.parse_args()
    if options.report:
        print(report(read_results(options.report)))
        return 0
    if options.out is None:
        parser.error("--out: name the file of results")
    run_cases(options)
    results = read_results(options.out)
    print(report(results))
    return 0 if all(map(has_passed, results)) else 1


if __name__ == "__main__":
    sys.exit(main())
