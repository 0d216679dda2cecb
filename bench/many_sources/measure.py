#!/usr/bin/env python3
"""What do many training sources cost a run? Measures the run's start, its resume, its memory and the files of its
folder.

    bench/many_sources/measure.py build/copus [OTHER_PROGRAM ...] [--sources 1 3000 100000] [--equal] [--ranks 2]

Each source is a small text file with its own weight, from 1e-6 to 1 (with --equal, all weights are 1). The end of each
file is held out. A run makes two steps and evaluates, and is resumed for two more. Prints one row for each program and
number of sources: seconds from the start of the process to the first step, for the new run and for the resumed run;
seconds of the whole new run; peak resident bytes of the new run's largest process; and the bytes of files in the run's
folder.
"""

import argparse
import os
import pathlib
import shutil
import subprocess
import tempfile
import time

RUN = """
[model]
architecture = "llama"
vocab_size = 256
hidden_size = 32
intermediate_size = 64
num_hidden_layers = 2
num_attention_heads = 4
num_key_value_heads = 2
[data]
mask_across_documents = false
held_out_fraction = 0.1
train = [{sources}]
[train]
sequence_length = 32
global_batch = 8
micro_batch = 4
max_steps = 2
threads = 1
precision = "fp32"
[parallel]
data_parallel = {ranks}
[log]
interval = 1
"""
LEAST_WEIGHT = 1e-6  # of the first source; the last one's is 1
FILES = ("config.toml", "run.jsonl", "report.html")
COLUMNS = ("sources", "new run, first step", "whole run", "resumed, first step", "peak, MB", *(f"{name}, kB" for name in FILES),
           "program")


def write_run(folder, count, is_equal, ranks):
    (folder / "sources").mkdir()
    entries = []
    for number in range(count):
        path = f"sources/{number:06}.txt"
        (folder / path).write_text(f"source {number}: the sea and the sky and the stars are far away\n" * 6)
        weight = 1 if is_equal else LEAST_WEIGHT ** (1 - (number + 1) / count)
        entries.append(f'{{ path = "{path}", weight = {weight!r} }}')
    (folder / "run.toml").write_text(RUN.format(sources=", ".join(entries), ranks=ranks))


def run(folder, *command):
    """Seconds to the first step, seconds to the end, and the peak of memory in bytes."""
    began, first_step = time.monotonic(), None
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)
    for line in process.stdout:
        if first_step is None and line.startswith("step "):
            first_step = time.monotonic() - began
    _, process.returncode, usage = os.wait4(process.pid, 0)
    if process.returncode != 0 or first_step is None:
        raise SystemExit(f"{' '.join(command)} made no step, or failed")
    return first_step, time.monotonic() - began, usage.ru_maxrss * 1024


def measure(program, folder, count, is_equal, ranks):
    write_run(folder, count, is_equal, ranks)
    first_step, whole, peak = run(folder, program, "train", "run.toml", "--run-dir", "r")
    sizes = [(folder / "r" / name).stat().st_size / 1e3 for name in FILES]
    resumed, _, peak_again = run(folder, program, "train", "--resume", "--run-dir", "r", "--set", "train.max_steps=4")
    return first_step, whole, resumed, max(peak, peak_again) / 1e6, *sizes


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("programs", nargs="+", help="the programs to measure, such as build/copus")
    parser.add_argument("--sources", type=int, nargs="+", default=[1, 3000, 100_000], help="how many")
    parser.add_argument("--equal", action="store_true", help="all have the same weight")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--folder", help="where the files are made (default: with other temporary files)")
    options = parser.parse_args()
    print(" | ".join(COLUMNS))
    for count in sorted(options.sources):
        for program in options.programs:
            folder = pathlib.Path(tempfile.mkdtemp(prefix="copus-many-sources-", dir=options.folder))
            try:
                row = measure(str(pathlib.Path(program).resolve()), folder, count, options.equal, options.ranks)
                print(" | ".join((str(count), *(f"{value:.2f}" for value in row), program)), flush=True)
            finally:
                shutil.rmtree(folder)


if __name__ == "__main__":
    main()
