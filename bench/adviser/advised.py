#!/usr/bin/env python3
"""Does following the adviser pay? Compares an advised batch with a constant batch, in plain PyTorch on the CPU.

Seeds are paired; see README.md in this folder. Continues from the results in --results; prints a table.
"""

import argparse
import json
import math
import pathlib
import statistics
import sys
import time
import warnings

import torch
import transformers

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "build-python/python"))

import copus  # noqa: E402

LENGTH, MICRO_BATCH = 64, 4
REFERENCE_BATCH, REFERENCE_RATE = 8, 3e-3  # other batches begin at the square-root rule's rate
EVALUATE = 1024  # sequences between measurements of the held-out loss
# Student's t for 95 %, by degrees of freedom.
STUDENT = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365}


def read(path: pathlib.Path) -> torch.Tensor:
    stream = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8)
    rows = (len(stream) - 1) // LENGTH
    return torch.stack([stream[row * LENGTH : (row + 1) * LENGTH + 1] for row in range(rows)])


def loss_of(model: torch.nn.Module, rows: torch.Tensor) -> torch.Tensor:
    logits = model(input_ids=rows[:, :-1].long()).logits.flatten(0, 1)
    return torch.nn.functional.cross_entropy(logits, rows[:, 1:].flatten().long())


@torch.no_grad()
def held_out_loss(model: torch.nn.Module, rows: torch.Tensor) -> float:
    return statistics.fmean(loss_of(model, part).item() for part in rows.split(64))


def train(
    seed: int, is_advised: bool, batch: int, warmup: float, rows: torch.Tensor, held_out: torch.Tensor, sequences: int
) -> list[dict]:
    """Returns a point every EVALUATE sequences: processor seconds of training, held-out loss, batch."""
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=256, hidden_size=64, intermediate_size=176, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=LENGTH, use_cache=False, tie_word_embeddings=True,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).train()
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
    first_rate = REFERENCE_RATE * math.sqrt(batch / REFERENCE_BATCH)
    optimizer = torch.optim.AdamW(model.parameters(), lr=first_rate, betas=(0.9, 0.95), weight_decay=0.1)
    adviser = copus.Adviser(batch=batch, sequence_length=LENGTH, directory=None)
    factor, consumed, seconds, points = 1.0, 0, 0.0, []
    while consumed < sequences:
        begin = time.process_time()
        rate = first_rate * factor * min(1.0, (consumed + batch) / warmup)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad()
        parts = rows[order[consumed : consumed + batch]].split(MICRO_BATCH)
        for index, part in enumerate(parts):
            (loss_of(model, part) / len(parts)).backward()
            if index == 0 and is_advised:
                adviser.first_micro_batch(model.parameters(), samples=MICRO_BATCH)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        took, advice = time.process_time() - begin, None
        if is_advised:
            advice = adviser.step(norm, samples=batch, seconds=took, lr=rate)
        seconds += time.process_time() - begin
        before, consumed = consumed, consumed + batch
        if consumed // EVALUATE > before // EVALUATE:
            points.append({"sequences": consumed, "seconds": seconds, "loss": held_out_loss(model, held_out),
                           "batch": batch})  # fmt: skip
        if advice is not None:
            batch, factor = advice.batch, advice.learning_rate_factor
    return points


def ratios(runs: dict[str, list[dict]]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {"seconds": [], "sequences": []}
    for seed in sorted({name.split()[1] for name in runs}):
        constant, advised = runs.get(f"constant {seed}"), runs.get(f"advised {seed}")
        if not constant or not advised:
            continue
        target = constant[-1]["loss"]
        reached = next((point for point in advised if point["loss"] <= target), None)
        for name, values in found.items():
            values.append(reached[name] / constant[-1][name] if reached else math.inf)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", default="data/gcide", help="of scripts/fetch-corpus")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--batch", type=int, default=REFERENCE_BATCH, help="that both begin with")
    parser.add_argument("--sequences", type=int, default=4096, help="of the constant run; the advised one's limit is twice")
    parser.add_argument("--results", default="bench/adviser/advised.jsonl")
    arguments = parser.parse_args()
    warnings.simplefilter("error", copus.AdviserWarning)
    torch.set_num_threads(1)
    results = pathlib.Path(arguments.results)
    lines = results.read_text().splitlines() if results.exists() else []
    runs = {line["run"]: line["points"] for line in map(json.loads, lines)}
    rows = read(pathlib.Path(arguments.corpus, "train.txt"))[: 2 * arguments.sequences]
    held_out = read(pathlib.Path(arguments.corpus, "held_out.txt"))[:256]
    for seed in range(1, arguments.seeds + 1):
        for arm in ("constant", "advised") if seed % 2 else ("advised", "constant"):
            if f"{arm} {seed}" in runs:
                continue
            limit = arguments.sequences * (2 if arm == "advised" else 1)
            points = train(seed, arm == "advised", arguments.batch, arguments.sequences / 8, rows, held_out, limit)
            runs[f"{arm} {seed}"] = points
            with results.open("a") as file:
                file.write(json.dumps({"run": f"{arm} {seed}", "points": points}) + "\n")
    for name, values in ratios(runs).items():
        shown = ", ".join(f"{each:.3f}" for each in values)
        print(f"{name} to the constant run's last loss, advised / constant: {shown}")
        logs = [math.log(each) for each in values]
        if len(logs) > 1 and all(map(math.isfinite, logs)):
            half = STUDENT[len(logs) - 1] * statistics.stdev(logs) / math.sqrt(len(logs))
            mean = statistics.fmean(logs)
            print(f"  geometric mean {math.exp(mean):.3f} ({math.exp(mean - half):.3f} .. {math.exp(mean + half):.3f})")
    for name, points in runs.items():
        print(f"  {name}: batches {' '.join(str(point['batch']) for point in points)}")


if __name__ == "__main__":
    main()
