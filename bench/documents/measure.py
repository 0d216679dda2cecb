#!/usr/bin/env python3
"""What does attention within documents save? Measures tokens/s with and without it, and compares them with the
prediction.

    bench/documents/measure.py build/copus [--lengths 100 1000 10000] [--turns 5] [--hidden 64] [--machine here.toml]

Makes a corpus of documents of about each length (exponentially distributed) and trains a small Llama on sequences of
4,096 tokens, in turns with and without data.mask_across_documents. For each length, prints the document length that the
run measured; the processor seconds of a step on one thread (median and range over the turns) and their prediction; and
the ratio of tokens/s with and without the mask, measured and predicted. Processor time excludes start-up: the time of a
one-step run is subtracted. A busy machine changes processor time less than tokens/s. The run reads every sequence of
the corpus once, because sequences of few documents differ much in their work. Predictions are made at the start of a
run, before it has learned from a step. They need a description of this machine by `copus profile --machine` in fp32;
without --machine, the script first makes one.
"""

import argparse
import array
import pathlib
import random
import re
import resource
import shutil
import statistics
import struct
import subprocess
import tempfile

RUN = """
[model]
architecture = "llama"
vocab_size = 256
hidden_size = {hidden}
intermediate_size = {intermediate}
num_hidden_layers = 2
num_attention_heads = 4
num_key_value_heads = 2
max_position_embeddings = 4096
[data]
held_out_fraction = 0.0
train = "corpus"
[train]
sequence_length = 4096
global_batch = 1
micro_batch = 1
max_steps = {steps}
threads = 1
precision = "fp32"
[cluster]
config = "machine.toml"
[noise_scale]
enabled = false
[evaluate]
interval = 0
[checkpoint]
interval_seconds = 0
[log]
tensorboard = false
"""
SEQUENCE = 4096


def write_corpus(folder, mean, tokens):
    numbers = random.Random(1)
    lengths, left = array.array("i"), tokens
    while left:
        lengths.append(min(left, max(2, round(numbers.expovariate(1 / mean)))))
        left -= lengths[-1]
    offsets, offset = array.array("q"), 0
    for length in lengths:
        offsets.append(offset)
        offset += 2 * length
    (folder / "corpus.bin").write_bytes(array.array("H", (numbers.randrange(256) for _ in range(tokens))).tobytes())
    (folder / "corpus.idx").write_bytes(
        b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, len(lengths), len(lengths) + 1) + lengths.tobytes() +
        offsets.tobytes() + array.array("q", range(len(lengths) + 1)).tobytes())


def command(program, masks, *more):
    return [program, "train", "run.toml", "--run-dir", "r", "--set", f"data.mask_across_documents={str(masks).lower()}",
            *more]


def processor_seconds(program, folder, masks, steps):
    """Returns the processor seconds of a run of so many steps."""
    shutil.rmtree(folder / "r", ignore_errors=True)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command(program, masks, "--set", f"train.max_steps={steps}"), cwd=folder, check=True,
                   stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measured(program, folder, masks, steps):
    """The processor seconds of a step."""
    least = processor_seconds(program, folder, masks, 1)
    return (processor_seconds(program, folder, masks, steps + 1) - least) / steps


def predicted(program, folder, masks):
    """The seconds of a step that a run expects before its first one, and the length of a token's document."""
    shutil.rmtree(folder / "r", ignore_errors=True)
    text = subprocess.run([*command(program, masks), "--dry-run"], cwd=folder, check=True, capture_output=True,
                          text=True).stdout
    rate = re.search(r"speed +([\d.,]+) ?([kMG]?) tokens/s", text)
    if rate is None:
        raise SystemExit(f"the run does not predict its speed:\n{text}")
    documents = re.search(r"a token's document has (\d+) tokens", text)
    tokens_per_second = float(rate[1].replace(",", "")) * {"": 1, "k": 1e3, "M": 1e6, "G": 1e9}[rate[2]]
    return SEQUENCE / tokens_per_second, int(documents[1]) if documents else None


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("program")
    parser.add_argument("--lengths", type=int, nargs="+", default=[100, 1000, 10000])
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--hidden", type=int, default=64, help="the model's width; it has 4 heads")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--machine", type=pathlib.Path, help="the machine's description (default: it is measured)")
    options = parser.parse_args()
    program = str(pathlib.Path(options.program).resolve())
    folder = pathlib.Path(tempfile.mkdtemp(prefix="copus-documents-"))
    try:
        (folder / "run.toml").write_text(
            RUN.format(steps=options.steps, hidden=options.hidden, intermediate=2 * options.hidden))
        if options.machine:
            shutil.copy(options.machine, folder / "machine.toml")
        else:
            subprocess.run([program, "profile", "--machine", "machine.toml", "--precision", "fp32"], cwd=folder,
                           check=True, stdout=subprocess.DEVNULL)
        print("documents of | a token's document | step without mask, s | predicted | with mask, s | predicted | "
              "ratio of tokens/s | predicted")
        for mean in options.lengths:
            write_corpus(folder, mean, options.steps * SEQUENCE + 1)
            seconds = {True: [], False: []}
            for turn in range(options.turns):
                for masks in (turn % 2 == 0, turn % 2 != 0):
                    seconds[masks].append(measured(program, folder, masks, options.steps))
            ratios = [whole / masked for whole, masked in zip(seconds[False], seconds[True])]
            within, documents = predicted(program, folder, True)
            without = predicted(program, folder, False)[0]

            def with_range(values, digits):
                return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"

            print(f"{mean} | {documents} | {with_range(seconds[False], 3)} | {without:.3f} | "
                  f"{with_range(seconds[True], 3)} | {within:.3f} | {with_range(ratios, 2)} | {without / within:.2f}",
                  flush=True)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
