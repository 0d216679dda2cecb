#!/usr/bin/env python3
"""Runs real NCCL between several ranks on one GPU, case by case, and appends the result of each case to a file of JSON
lines as soon as it ends. A later call skips the cases in that file, so several calls of ten minutes cover all cases. A
case that --seconds interrupts is left for the next call.

    python3 bench/gpu/nccl.py --nccl-source SOURCE --out nccl.jsonl --seconds 570   # the next cases that fit
    python3 bench/gpu/nccl.py ... --out more.jsonl --earlier nccl.jsonl             # those that no file has yet
    python3 bench/gpu/nccl.py --report nccl.jsonl more.jsonl                        # the table of all calls
    python3 bench/gpu/nccl.py --dry-run --out dry.jsonl --seconds 570               # the same cases on CPUs

NCCL allows several ranks on one GPU since 2.30 (NCCL_MULTI_RANK_GPU_ENABLE=1, NCCL_MAX_CTAS=2 for more than two), and
Copus uses NCCL there if COPUS_NCCL_ON_SHARED_GPUS is 1. SOURCE is a checkout of NCCL, which the first case builds.
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
# After this many hanging tests of comm, or this many seconds, the rest of these tests is not run.
COMM_TEST_HANGS = 3
COMM_TEST_SECONDS = 300
# Between layouts losses differ only by the order of sums: a few float32 roundings, propagated through a few steps.
LOSS_TOLERANCE = 2e-3

LAYOUTS = {
    "p2": {"pipeline_parallel": 2},
    "p2-interleaved": {"pipeline_parallel": 2, "virtual_stages": 2, "schedule": "interleaved"},
    "t2": {"tensor_parallel": 2},
    "d2-zero1": {"data_parallel": 2, "zero_stage": 1},
    "d2-zero2": {"data_parallel": 2, "zero_stage": 2},
    "d2-zero3": {"data_parallel": 2, "zero_stage": 3},
    "d4-replicas2": {"data_parallel": 4, "zero_stage": 2, "zero_replicas": 2},
    "t2-sequence": {"tensor_parallel": 2, "sequence_parallel": "true"},
    "p4": {"pipeline_parallel": 4},
    "p4-zb": {"pipeline_parallel": 4, "schedule": "zb-h1"},
    "d2t2p2": {"data_parallel": 2, "tensor_parallel": 2, "pipeline_parallel": 2, "zero_stage": 1},
}


@dataclasses.dataclass
class Case:
    name: str
    seconds: float  # limit of its duration
    run: object  # takes a Bench, returns a dict of what to keep
    needs: float = 60  # seconds that must be left to begin it


class OutOfTime(Exception):
    """This program's time ran out during a case."""


@dataclasses.dataclass
class Outcome:
    code: int | None  # None: stopped at the limit
    seconds: float
    text: str


def ranks_of(layout: dict) -> int:
    return math.prod(layout.get(f"{axis}_parallel", 1) for axis in ("data", "tensor", "pipeline"))


def settings_of(layout: dict) -> list[str]:
    settings = []
    usual_values = {"data_parallel": 1, "tensor_parallel": 1, "pipeline_parallel": 1, "virtual_stages": 1,
                    "schedule": '"1f1b"', "zero_stage": 0, "zero_replicas": 1, "sequence_parallel": "false"}
    for key, usual in usual_values.items():
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


def comm_test_of(program):
    return program.parent / "rooms" / "comm" / "comm_test"


class Bench:
    def __init__(self, options: argparse.Namespace, folder: pathlib.Path, deadline: float = math.inf):
        self.program = str(options.program)
        self.comm_test = str(comm_test_of(options.program))
        self.deadline = deadline  # of the whole call, on the monotonic clock
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
mask_across_documents = false
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
        """Runs a command in a process group of its own, which is killed at the limit: a hang is an outcome."""
        begin = time.monotonic()
        is_cut = self.deadline - begin < limit
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                   env=environment, cwd=self.folder, start_new_session=True)
        try:
            text, _ = process.communicate(timeout=max(0.1, min(limit, self.deadline - begin)))
            return Outcome(process.returncode, time.monotonic() - begin, text)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            text, _ = process.communicate()
            if is_cut:
                raise OutOfTime(command[0]) from None
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


def comm_tests(bench: Bench) -> dict:
    """Runs the tests of comm's NCCL, each in a process of its own, with the real library and ranks as threads."""
    environment = bench.environment(4, {} if bench.dry else {"COPUS_TEST_NCCL_GPUS": "1"})
    suites = "--gtest_filter=NcclWorld.*:NcclFailure.*"
    listed = bench.call([bench.comm_test, suites, "--gtest_list_tests"], 60, environment)
    names, suite = [], ""
    for line in listed.text.splitlines():
        if line.startswith("Nccl"):
            suite = line.split()[0]
        elif line.startswith("  "):
            names.append(suite + line.split()[0])
    kept = {"code": listed.code, "tests": len(names), "skipped": 0, "failed": {}, "not_run": []}
    hung, end = 0, time.monotonic() + COMM_TEST_SECONDS
    for name in names:
        if hung == COMM_TEST_HANGS or time.monotonic() >= end:
            kept["not_run"].append(name)
            continue
        outcome = bench.call([bench.comm_test, f"--gtest_filter={name}"], 45, environment)
        if outcome.code != 0:
            kept["failed"][name] = {"code": outcome.code, "says": last_lines(outcome.text, 6)}
            kept["code"] = outcome.code if kept["code"] == 0 else kept["code"]
            hung += outcome.code is None
        kept["skipped"] += "[  SKIPPED ] 1 test" in outcome.text
    kept["passed"] = bool(names) and kept["code"] == 0 and not kept["not_run"]
    return kept


def selftest(ranks: int, limit: float, extra: dict | None = None):
    """Returns a case that gives the self-test's result. With two ranks, the result also has the GPU memory of one
    rank's communicator. Both ranks open their communicators at the same time, so one communicator's memory is half of
    the increase in used memory. With more ranks several groups open at once, and the memory of one group cannot be
    separated."""

    def run(bench: Bench) -> dict:
        command = [bench.program, "selftest", "--ranks", str(ranks), "--device", bench.device, "--seconds",
                   str(int(limit * 0.6)), "--json"]
        outcome = bench.call(command, limit, bench.environment(ranks, extra))
        kept = {"code": outcome.code, "command_seconds": round(outcome.seconds, 1)}
        try:
            result = json.loads(outcome.text.strip().splitlines()[-1])
        except (json.JSONDecodeError, IndexError):
            return kept | {"says": last_lines(outcome.text)}
        for kind in ("groups", "layouts", "relayouts"):
            rows = result.get(kind, [])
            kept[kind] = f"{sum(row['passed'] for row in rows)} of {len(rows)}"
            kept["failed"] = kept.get("failed", []) + [row for row in rows if not row["passed"]][:3]
        kept["connection"] = result["connection"]
        if costs := result.get("communicators"):
            kept["split_seconds"] = costs["split_seconds"]
            if ranks == 2:
                kept["megabytes_of_a_rank"] = {name.removesuffix("_bytes"): round(costs[name] / 1e6 / ranks, 1)
                                               for name in ("collective_bytes", "exchange_bytes", "message_bytes")}
        return kept

    return run


def one_rank(bench: Bench) -> dict:
    """The shapes and the host's cost of one of eight tensor-parallel ranks, without communication."""
    shape = (["--layers", "2", "--hidden", "256", "--heads", "8", "--kv-heads", "8", "--ffn", "704", "--vocab", "512"]
             if bench.dry else ["--model", "qwen2.5-1.5b"])
    command = [bench.program, "bench", "step", "--device", bench.device, *shape, "--sequence-length",
               "64" if bench.dry else "2048", "--micro-batch", "1", "--micro-batches", "2", "--steps", "5", "--json"]
    kept = {}
    # Heads must divide by t: qwen2.5-1.5b has 12, so four ranks there.
    for layout in ("d=1,t=1,p=1", "d=1,t=8,p=1" if bench.dry else "d=1,t=4,p=1"):
        outcome = bench.call([*command, "--as", layout], 150, bench.environment(1))
        kept["code"] = outcome.code
        if outcome.code != 0:
            return kept | {"says": last_lines(outcome.text)}
        result = json.loads(outcome.text.strip().splitlines()[-1])
        kept[layout] = {"milliseconds": round(result["seconds_per_step"] * 1e3, 2),
                        "gigabytes": round(result["peak_memory_bytes"] / 1e9, 2)}
    return kept


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
    lines = []
    for step, layout in enumerate(("d=2,t=1,p=2,zero=1", "d=1,t=2,p=2", "d=4,t=1,p=1,zero=3", "d=1,t=1,p=4",
                                   "d=2,t=2,p=1,zero=2")):
        lines.append(json.dumps({"after_step": 4 * step + 4, "configuration": f"{layout},B=16,b=2"}))
    (bench.folder / "script.jsonl").write_text("\n".join(lines) + "\n")
    # The script decides, but a cluster must be described nevertheless.
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
    kept["building_groups_seconds"] = [
        round(phases.get("building groups", 0), 3)
        for phases in (json.loads(line).get("phase_seconds", {}) for line in outcomes if '"moved"' in line)]
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
    """Eight ranks as another launcher would start them, on what NCCL takes for two nodes."""
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
    """With few hardware queues a pipeline must be refused (exit code 2), not hang."""

    def run(bench: Bench) -> dict:
        kept = bench.train(LAYOUTS["p4"], f"connections-{number}", 90, {"CUDA_DEVICE_MAX_CONNECTIONS": str(number)})
        kept["passed"] = kept["code"] == (0 if bench.dry or number >= 8 else 2)
        return kept

    return run


def struck(name: str, which: int):
    """A rank is killed or stopped during training: the others must exit within seconds, and name it."""

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
    """The cases, most important first, in case time runs out."""
    listed = [Case("build-nccl", 550, build_nccl, needs=300), Case("comm-tests", 410, comm_tests, needs=200),
              Case("selftest-2", 90, selftest(2, 90))]
    listed += [Case(f"layout-{name}", 200, layout_case(name)) for name in LAYOUTS]
    listed += [
        Case("switches", 240, switches),
        Case("two-nodes", 130, two_nodes, needs=130),
        *[Case(f"connections-{number}", 100, connections(number)) for number in (1, 8, 32)],
        Case("killed", 130, struck("killed", signal.SIGKILL), needs=130),
        Case("stopped", 130, struck("stopped", signal.SIGSTOP), needs=130),
        Case("selftest-4", 100, selftest(4, 100)),
        Case("selftest-8", 150, selftest(8, 150)),
        Case("one-rank", 300, one_rank),
        *[Case(f"bits-{first}", 310, bits(first, first + 5)) for first in (0, 5, 10, 15)],
    ]
    return listed


def read_results(path: pathlib.Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def has_passed(result: dict) -> bool:
    return result.get("passed", result.get("code") == 0)


def report(results: list[dict]) -> str:
    lines = [f"{'case':22} {'exit':>5} {'seconds':>8} {'last loss':>10} {'from CPU':>9}  "]
    for result in results:
        code = "hung" if result.get("code") is None else str(result["code"])
        loss, difference = result.get("last_loss"), result.get("difference_from_cpu")
        lines.append(f"{result['case']:22} {code:>5} {result['seconds']:8.1f} "
                     f"{'' if loss is None else format(loss, '10.5f'):>10} "
                     f"{'' if difference is None else format(difference, '9.1e'):>9}  "
                     f"{'passed' if has_passed(result) else 'FAILED'}")
    all_bits = [result["losses"] for result in results if result["case"].startswith("bits-") and "losses" in result]
    if all_bits:
        runs = sum(result["runs"] for result in results if result["case"].startswith("bits-"))
        lines.append(f"{runs} runs of one layout: "
                     f"{'bitwise alike' if all(one == all_bits[0] for one in all_bits) else 'they DIFFER'}")
    for result in results:
        if "split_seconds" in result:
            kinds = [f"{kind} {megabytes} MB" for kind, megabytes in result.get("megabytes_of_a_rank", {}).items()]
            lines.append(f"{result['case']}: {result['split_seconds']:.3f} s a split"
                         f"{'; a communicator takes ' if kinds else ''}{', '.join(kinds)}")
    names = {result["case"] for result in results}
    missing = [case.name for case in cases() if case.name not in names]
    lines.append(f"{sum(map(has_passed, results))} of {len(results)} passed; not run: {', '.join(missing) or 'none'}")
    return "\n".join(lines)


def run_cases(options: argparse.Namespace) -> None:
    deadline = time.monotonic() + options.seconds
    done = {result["case"] for path in (options.out, *options.earlier) for result in read_results(path)}
    with tempfile.TemporaryDirectory(prefix="copus-nccl-") as folder:
        bench = Bench(options, pathlib.Path(folder), deadline)
        for case in cases():
            if case.name in done or (options.only and not re.search(options.only, case.name)):
                continue
            if deadline - time.monotonic() < min(case.seconds, case.needs):
                continue
            begin = time.monotonic()
            try:
                kept = case.run(bench)
            except OutOfTime:
                print(f"{case.name}: interrupted by the end of --seconds", flush=True)
                continue
            except Exception as error:  # continue with the next cases
                kept = {"code": None, "says": f"{type(error).__name__}: {error}", "passed": False}
            result = {"case": case.name, "seconds": round(time.monotonic() - begin, 1), "dry": options.dry_run, **kept}
            with options.out.open("a") as out:
                out.write(json.dumps(result) + "\n")
            print(f"{case.name}: {'passed' if has_passed(result) else 'FAILED'} in {result['seconds']} s", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=lambda path: pathlib.Path(path).resolve(), default=ROOT / "build" / "copus")
    parser.add_argument("--nccl-source", type=pathlib.Path)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--seconds", type=float, default=570)
    parser.add_argument("--only", help="a regular expression of case names")
    parser.add_argument("--dry-run", action="store_true", help="on CPUs, without NCCL: tries this program out")
    parser.add_argument("--earlier", type=pathlib.Path, nargs="*", default=[], help="results whose cases are skipped")
    parser.add_argument("--report", type=pathlib.Path, nargs="+", help="print the table of files of results")
    options = parser.parse_args()
    if options.report:
        print(report([result for path in options.report for result in read_results(path)]))
        return 0
    if options.out is None:
        parser.error("--out: name the file of results")
    for program in (options.program, comm_test_of(options.program)):
        if not program.is_file():
            parser.error(f"--program: there is no {program}; build copus and comm_test first")
    run_cases(options)
    results = [result for path in (*options.earlier, options.out) for result in read_results(path)]
    print(report(results))
    return 0 if all(map(has_passed, results)) else 1


if __name__ == "__main__":
    sys.exit(main())
