#!/usr/bin/env python3
"""How many tokens and seconds does Muon need to reach AdamW's loss? Trains a small model by both, at several rates.

    bench/optimizers/measure.py build/copus --data data/gcide --rows bench/optimizers/rows.jsonl [--model 1.7M]

README.md states the question, the repetitions and the rule, which were fixed before anything ran. Every finished run is
a row of the file of rows; runs that have a row are not repeated. Prints the table at the end, or with --table alone.
"""

import argparse
import json
import math
import pathlib
import statistics
import subprocess
import tempfile

MODELS = {  # hidden size, feed-forward size, layers, heads; tokens of a run
    "quickstart": (128, 352, 4, 4, 1_500_000),
    "1.7M": (160, 440, 5, 5, 1_500_000),
}
RATES = {"adamw": [1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2], "muon": [1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2]}
SEEDS = [1, 2, 3]  # the grid is measured with the first; the best rate with all
BATCH, LENGTH, EVALUATIONS = 16, 256, 30

RUN = """
[model]
architecture = "llama"
vocab_size = 256
hidden_size = {hidden}
intermediate_size = {feed_forward}
num_hidden_layers = {layers}
num_attention_heads = {heads}
num_key_value_heads = {heads}
max_position_embeddings = {length}
tie_word_embeddings = false
[data]
train = "{data}/train.txt"
held_out = ["{data}/held_out.txt"]
document_separator = "\\n\\n\\n"
mask_across_documents = false
[train]
sequence_length = {length}
global_batch = {batch}
micro_batch = {batch}
max_tokens = {tokens}
threads = 1
precision = "fp32"
seed = {seed}
[optimizer]
kind = "{optimizer}"
lr = {rate}
schedule = "cosine"
warmup_tokens = 0.03
[noise_scale]
enabled = false
[evaluate]
interval_tokens = {interval}
interval = 0
max_batches = 16
[checkpoint]
interval = 0
interval_seconds = 0
[log]
tensorboard = false
"""


def run(program, data, model, optimizer, rate, seed):
    hidden, feed_forward, layers, heads, tokens = MODELS[model]
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        text = RUN.format(hidden=hidden, feed_forward=feed_forward, layers=layers, heads=heads, tokens=tokens,
                          length=LENGTH, batch=BATCH, data=data, optimizer=optimizer, rate=rate, seed=seed,
                          interval=tokens // EVALUATIONS)
        (folder / "run.toml").write_text(text)
        ended = subprocess.run([program, "train", "run.toml", "--run-dir", "run", "--set", "log.interval=1"],
                               cwd=folder, stdout=subprocess.DEVNULL, check=False)
        records = [json.loads(line) for line in (folder / "run" / "run.jsonl").read_text().splitlines()]
    held_out = [(record["consumed_tokens"], record["held_out_loss"]) for record in records
                if record.get("held_out_loss") is not None]
    step_seconds = statistics.median(record["step_seconds"] for record in records[2:])
    return {"model": model, "optimizer": optimizer, "rate": rate, "seed": seed, "step_seconds": step_seconds,
            "diverged": ended.returncode != 0, "held_out": held_out}


def final(row):
    return math.inf if row.get("diverged") else row["held_out"][-1][1]


def tokens_to(row, loss):
    """Interpolated between evaluations; None if the run did not reach the loss."""
    before = None
    for tokens, held_out in row["held_out"]:
        if held_out <= loss:
            if before is None:
                return tokens
            share = (before[1] - loss) / (before[1] - held_out)
            return before[0] + share * (tokens - before[0])
        before = (tokens, held_out)
    return None


def best_rate(rows, model, optimizer):
    first = [row for row in rows if (row["model"], row["optimizer"], row["seed"]) == (model, optimizer, SEEDS[0])]
    return min(first, key=final)["rate"] if len(first) == len(RATES[optimizer]) else None


def table(rows):
    print("model | optimizer | rate | final held-out loss, mean of seeds | tokens to AdamW's | its seconds | ms a step")
    for model in MODELS:
        best = {optimizer: best_rate(rows, model, optimizer) for optimizer in RATES}
        if None in best.values():
            continue
        of = {optimizer: [row for row in rows if (row["model"], row["optimizer"], row["rate"]) ==
                          (model, optimizer, best[optimizer])] for optimizer in RATES}
        target = statistics.mean(final(row) for row in of["adamw"])
        for optimizer, some in of.items():
            reached = [tokens_to(row, target) for row in some]
            step = statistics.median(row["step_seconds"] for row in some)
            known = [tokens for tokens in reached if tokens is not None]
            text = "not reached" if not known else f"{statistics.mean(known):,.0f}"
            seconds = "" if not known else f"{statistics.mean(known) / (BATCH * LENGTH) * step:,.0f}"
            if known and len(known) < len(reached):
                text += f" (in {len(known)} of {len(reached)} runs)"
            inside = RATES[optimizer][0] < best[optimizer] < RATES[optimizer][-1]
            print(f"{model} | {optimizer} | {best[optimizer]:g}{'' if inside else ' (end of the grid)'} | "
                  f"{statistics.mean(final(row) for row in some):.4f} | {text} | {seconds} | {1000 * step:.1f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("program", nargs="?")
    parser.add_argument("--data", type=pathlib.Path)
    parser.add_argument("--rows", type=pathlib.Path, required=True)
    parser.add_argument("--model", choices=MODELS, action="append")
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    rows = [json.loads(line) for line in options.rows.read_text().splitlines()] if options.rows.exists() else []

    def measure(model, optimizer, rate, seed):
        if any((row["model"], row["optimizer"], row["rate"], row["seed"]) == (model, optimizer, rate, seed)
               for row in rows):
            return
        row = run(pathlib.Path(options.program).resolve(), options.data.resolve(), model, optimizer, rate, seed)
        rows.append(row)
        with options.rows.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(model, optimizer, rate, seed, f"{final(row):.4f}", flush=True)

    if not options.table:
        for model in options.model or MODELS:
            for optimizer, rates in RATES.items():
                for rate in rates:
                    measure(model, optimizer, rate, SEEDS[0])
                for seed in SEEDS[1:]:
                    measure(model, optimizer, best_rate(rows, model, optimizer), seed)
    table(rows)


if __name__ == "__main__":
    main()
