#!/usr/bin/env python3
"""What do thousands of shards cost a run? Compares shards with one file: start, memory, tokens/s, and kills.

    bench/shards/measure.py build/copus [--shards 2000] [--turns 5] [--kills 20]

Makes a corpus of shards of 1 MB (uint16) and one pair with the same tokens, in a temporary folder, which takes 2 GB of
disk for 2,000 shards. Three runs take turns: over the one file, over the shards as one corpus (a pattern), and over the
shards one after the other (data.shuffle_shards). Each turn prints four values: seconds from the start of the process to
the first step; tokens/s of all steps except the first two, including the waits between steps; tokens per second of
processor time, which a busy machine changes less; and resident memory without pages of files, after a quarter of the
run and at the end of the run. Then a run over shards, one after the other, is killed by SIGKILL at random moments and
resumed, and its losses are compared bitwise with the losses of an undisturbed run.
"""

import argparse
import array
import json
import os
import pathlib
import random
import shutil
import statistics
import struct
import subprocess
import tempfile
import time

RUN = """
[model]
architecture = "llama"
vocab_size = 4096
hidden_size = 128
intermediate_size = 256
num_hidden_layers = 2
num_attention_heads = 4
num_key_value_heads = 2
[data]
mask_across_documents = false
held_out_fraction = 0.0
train = "PATTERN"
[train]
sequence_length = 256
global_batch = 16
micro_batch = 8
max_steps = {steps}
threads = 1
precision = "fp32"
[noise_scale]
enabled = false
[evaluate]
interval = 0
[checkpoint]
interval = 0
interval_seconds = 0
[log]
tensorboard = false
"""
TOKENS_OF_A_SHARD = 500_000
WAYS = {"one file": ("whole", False), "joined shards": ("shards/web-*", False),
        "shards in turn": ("shards/web-*", True)}


def write_index(path, lengths):
    offsets, offset = array.array("q"), 0
    for length in lengths:
        offsets.append(offset)
        offset += 2 * length
    path.write_bytes(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, len(lengths), len(lengths) + 1) + lengths.tobytes() +
                     offsets.tobytes() + array.array("q", range(len(lengths) + 1)).tobytes())


def write_corpus(folder, shards):
    """Documents of 10 to 1,990 tokens."""
    numbers = random.Random(1)
    (folder / "shards").mkdir()
    everything = array.array("i")
    with open(folder / "whole.bin", "wb") as whole:
        for shard in range(shards):
            lengths, left = array.array("i"), TOKENS_OF_A_SHARD
            while left:
                lengths.append(min(left, numbers.randrange(10, 1990)))
                left -= lengths[-1]
            some = array.array("H", (numbers.randrange(4096) for _ in range(2000))).tobytes()
            data = some * (2 * TOKENS_OF_A_SHARD // len(some))
            prefix = folder / "shards" / f"web-{shard:05d}-of-{shards:05d}"
            prefix.with_suffix(".bin").write_bytes(data)
            write_index(prefix.with_suffix(".idx"), lengths)
            whole.write(data)
            everything.extend(lengths)
    write_index(folder / "whole.idx", everything)


def own_memory(pid):
    """Resident bytes that are no pages of files."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("RssAnon:"))


def command(program, way, run_dir, steps):
    train, shuffles = WAYS[way]
    return [program, "train", "run.toml", "--run-dir", run_dir, "--set", f"data.train={train}", "--set",
            f"data.shuffle_shards={str(shuffles).lower()}", "--set", f"train.max_steps={steps}", "--set",
            "log.interval=1"]


def records(run_dir):
    log = run_dir / "run.jsonl"
    return [json.loads(line) for line in log.read_text().splitlines() if line] if log.exists() else []


def measure(program, folder, way, steps):
    run_dir = folder / "r"
    shutil.rmtree(run_dir, ignore_errors=True)
    began, first, memory = time.monotonic(), None, []
    process = subprocess.Popen(command(program, way, "r", steps), cwd=folder, stdout=subprocess.PIPE, text=True)
    for line in process.stdout:
        if not line.startswith("step "):
            continue
        first = first or time.monotonic() - began
        try:
            memory.append(own_memory(process.pid))
        except (FileNotFoundError, ProcessLookupError, StopIteration):
            pass
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"{way}: the run failed")
    seconds = [record["step_seconds"] + (record["switch_seconds"] or 0) for record in records(run_dir)][2:]
    return (first, 16 * 256 * len(seconds) / sum(seconds), 16 * 256 * steps / (usage.ru_utime + usage.ru_stime),
            memory[len(memory) // 4], memory[-1])


def losses(run_dir):
    return {record["step"]: (record["loss"], record["grad_norm"]) for record in records(run_dir)}


def kill_and_resume(program, folder, kills, steps):
    every = ["--set", "checkpoint.interval=5"]
    way = "shards in turn"
    for run in ("quiet", "killed"):
        shutil.rmtree(folder / run, ignore_errors=True)
    subprocess.run([*command(program, way, "quiet", steps), *every], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    numbers, done = random.Random(2), 0
    start = [*command(program, way, "killed", steps), *every]
    process = subprocess.Popen(start, cwd=folder, stdout=subprocess.DEVNULL)
    while done < kills:
        last = max(losses(folder / "killed"), default=0)
        target = last + numbers.randrange(1, max(2, (steps - last) // (kills - done)))
        while max(losses(folder / "killed"), default=0) < target and process.poll() is None:
            time.sleep(0.002)
        process.kill()
        process.wait()
        done += 1
        process = subprocess.Popen([program, "train", "--resume", "--run-dir", "killed"], cwd=folder,
                                   stdout=subprocess.DEVNULL)
    if process.wait() != 0:
        raise SystemExit("the resumed run failed")
    equal = losses(folder / "killed") == losses(folder / "quiet")
    print(f"killed and resumed {done} times in {steps} steps: losses are {'equal' if equal else 'NOT equal'}")
    return equal


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("program")
    parser.add_argument("--shards", type=int, default=2000)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--folder", help="where the files are made (default: with other temporary files)")
    options = parser.parse_args()
    program = str(pathlib.Path(options.program).resolve())
    folder = pathlib.Path(tempfile.mkdtemp(prefix="copus-shards-", dir=options.folder))
    try:
        write_corpus(folder, options.shards)
        (folder / "run.toml").write_text(RUN.format(steps=options.steps))
        rows = {way: [] for way in WAYS}
        print("way | first step, s | tokens/s | tokens per processor second | memory after a quarter, MB | at the end")
        for turn in range(options.turns):
            order = list(WAYS) if turn % 2 == 0 else list(reversed(WAYS))
            for way in order:
                row = measure(program, folder, way, options.steps)
                rows[way].append(row)
                print(f"{way} | {row[0]:.2f} | {row[1]:,.0f} | {row[2]:,.0f} | {row[3] / 1e6:.1f} | {row[4] / 1e6:.1f}",
                      flush=True)
        for way, measured in rows.items():
            growth = max(row[4] - row[3] for row in measured) / 1e6
            start = statistics.median(row[0] for row in measured)
            print(f"{way}: first step {start:.2f} s, memory grows by {growth:.1f} MB")
            for what, column in (("tokens/s", 1), ("tokens per processor second", 2)):
                ratios = [row[column] / base[column] for row, base in zip(measured, rows["one file"])]
                print(f"    {what}: {statistics.median(ratios):.3f} of one file "
                      f"({min(ratios):.3f} to {max(ratios):.3f})")
        return 0 if kill_and_resume(program, folder, options.kills, options.steps) else 1
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    raise SystemExit(main())
