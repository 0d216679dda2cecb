"""Measures what a checkpoint costs a job of several ranks: the pause of training, the time until the checkpoint is
complete, and the memory that each rank needs besides its state.

Usage: measure.py [--rounds N] [--set SECTION.KEY=VALUE]... NAME=PATH_TO_COPUS...

In each round, each program first trains one step with a checkpoint at the end, then two steps with a checkpoint between
them. Files go to a temporary folder on the disk of --folder. The model has 0.27 billion parameters and the layout four
ranks, unless --set says otherwise. The pause is measured between the two steps. Memory is measured after the single
step: the sum of a rank's RssAnon and RssShmem in /proc/<pid>/status, sampled every 5 ms. The result is its maximum
until the checkpoint is complete, minus its value at the end of the step.
"""

import argparse
import json
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

RUN = """
[model]
architecture = "llama"
vocab_size = 256
hidden_size = 1024
intermediate_size = 4096
num_hidden_layers = 16
num_attention_heads = 16
num_key_value_heads = 16
[data]
train = "corpus.txt"
mask_across_documents = false
[train]
sequence_length = 16
global_batch = 2
micro_batch = 1
max_steps = {steps}
precision = "fp32"
[parallel]
data_parallel = 2
pipeline_parallel = 2
zero_stage = 1
[noise_scale]
enabled = false
[checkpoint]
interval = 1
"""

CORPUS = "the sea and the sky and the stars\n" * 200


def memory_of(pid):
    """Returns the MiB of a process's own memory."""
    try:
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    lines = dict(line.split(":", 1) for line in status.splitlines())
    return sum(int(lines.get(key, "0 kB").split()[0]) for key in ("RssAnon", "RssShmem")) / 1024


def train(program, steps, settings, parent):
    """Trains `steps` steps. Returns the records of the steps, the time when each step ended, the time when the last
    checkpoint was complete, and the memory of the ranks from the end of the first step on."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="copus_checkpoint_", dir=parent))
    try:
        (folder / "run.toml").write_text(RUN.replace("{steps}", str(steps)))
        (folder / "corpus.txt").write_text(CORPUS)
        overrides = [part for setting in settings for part in ("--set", setting)]
        process = subprocess.Popen([program, "train", "run.toml", "--run-dir", "run", *overrides], cwd=folder,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        log, last = folder / "run" / "run.jsonl", folder / "run" / "checkpoints" / f"step-{steps:08}"
        records, ended, memory, complete = [], [], [], None
        while process.poll() is None and complete is None:
            now = time.monotonic()
            lines = [line for line in log.read_text().splitlines(True) if line.endswith("\n")] if log.exists() else []
            if len(lines) > len(records):
                records = [json.loads(line) for line in lines]
                ended.append(now)
            if records:
                children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
                memory.append([memory_of(pid) for pid in children or [process.pid]])
            if last.exists():
                complete = now
            time.sleep(0.005)
        _, errors = process.communicate()
        if process.returncode != 0 or len(ended) != steps or complete is None:
            sys.exit(f"{program} failed: {errors}")
        return records, ended, complete, memory
    finally:
        shutil.rmtree(folder)


def measure(program, settings, parent):
    _, ended, complete, memory = train(program, 1, settings, parent)
    result = {"complete": complete - ended[0], "beside": [max(of_rank) - of_rank[0] for of_rank in zip(*memory)]}
    records, ended, _, _ = train(program, 2, settings, parent)
    return result | {"stands still": ended[1] - ended[0] - records[1]["step_seconds"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], dest="settings")
    parser.add_argument("--folder", default=None, help="where the runs are written")
    parser.add_argument("programs", nargs="+", metavar="NAME=PROGRAM")
    options = parser.parse_args()
    programs = dict(program.split("=", 1) for program in options.programs)
    found = {name: [] for name in programs}
    for _ in range(options.rounds):
        for name, program in programs.items():
            found[name].append(measure(str(pathlib.Path(program).resolve()), options.settings, options.folder))
    print("| program | training stands still, s | until complete, s | memory beside the state by rank, MiB |")
    print("|---|---|---|---|")
    for name, results in found.items():
        still, complete = (statistics.median(result[key] for result in results) for key in ("stands still", "complete"))
        beside = ", ".join(f"{max(of_rank):.0f}" for of_rank in zip(*(result["beside"] for result in results)))
        print(f"| {name} | {still:.2f} | {complete:.2f} | {beside} |")


if __name__ == "__main__":
    main()
