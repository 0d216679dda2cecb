#!/usr/bin/env python3
"""Do a plain loop, DDP, FSDP2, tensor parallelism and Copus itself measure the same noise scale of one model?

See README.md in this folder. Prints a table, and with --json one JSON object; the exit code is 1 if they disagree.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import warnings

import torch
import transformers

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "build-python/python"), str(ROOT / "python/tests")]

import copus  # noqa: E402
from processes import run_on_ranks  # noqa: E402

BATCH, LENGTH, SEED = 8, 64, 1234
TOLERANCE = 1e-3
# Name: ranks, kind, micro-batches a rank, whether the adviser watches reductions.
WAYS = {
    "plain loop": (1, "plain", 2, False),
    "DDP, synchronised": (2, "ddp", 2, False),
    "FSDP2": (2, "fsdp", 2, False),
    "tensor parallel": (2, "tp", 2, False),
    "DDP, no_sync": (2, "ddp no_sync", 2, False),
    "DDP, watched": (2, "ddp", 1, True),
    "FSDP2, watched": (2, "fsdp", 1, True),
}
SAME_SMALL_BATCH = list(WAYS)[:4] + ["Copus"]


def build_model(folder: str) -> None:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=256, hidden_size=64, intermediate_size=176, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=LENGTH, use_cache=False, tie_word_embeddings=False,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(folder)


def write_corpus(path: pathlib.Path) -> None:
    """Writes English text that is part of every checkout."""
    pages = sorted((ROOT / "docs").glob("*.md"))
    path.write_text("".join(page.read_text(encoding="utf-8") for page in pages), encoding="utf-8")


def mix(value: int) -> int:
    mask = (1 << 64) - 1
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & mask
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & mask
    return value ^ (value >> 31)


def extend(hashed: int, value: int) -> int:
    golden, mask = 0x9E3779B97F4A7C15, (1 << 64) - 1
    return mix((hashed + golden & mask) ^ mix(value + golden & mask))


def order_of_samples(samples: int, count: int) -> list[int]:
    """The order in which copus/data shuffles the first epoch of one corpus (dataset.cpp, permutation.cpp)."""
    key = extend(extend(extend(SEED, 1), 0), 0)
    bits = max(6, (samples - 1).bit_length())
    low_bits, high_bits = bits // 2, bits - bits // 2

    def encrypt(value: int) -> int:
        low, high = value & (1 << low_bits) - 1, value >> low_bits
        for turn in range(0, 12, 2):
            low ^= extend(key + turn & (1 << 64) - 1, high) & (1 << low_bits) - 1
            high ^= extend(key + turn + 1 & (1 << 64) - 1, low) & (1 << high_bits) - 1
        return high << low_bits | low

    order = []
    for index in range(count):
        index = encrypt(index)
        while index >= samples:
            index = encrypt(index)
        order.append(index)
    return order


def read_samples(corpus: pathlib.Path, steps: int) -> torch.Tensor:
    """[steps * batch, length + 1] bytes, in Copus' order; the corpus is one document."""
    stream = torch.tensor(list(corpus.read_bytes() + b"\xff"))
    windows = (len(stream) - 1) // LENGTH
    order = order_of_samples(windows, steps * BATCH)
    return torch.stack([stream[index * LENGTH : (index + 1) * LENGTH + 1] for index in order])


def cut(model: torch.nn.Module, kind: str) -> torch.nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    if kind.startswith("ddp"):
        return torch.nn.parallel.DistributedDataParallel(model)
    if kind == "fsdp":
        for layer in model.model.layers:
            fully_shard(layer)
        return fully_shard(model)
    if kind == "tp":
        across, along = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj"), (
            "self_attn.o_proj", "mlp.down_proj")  # fmt: skip
        plan = {name: ColwiseParallel() for name in across} | {name: RowwiseParallel() for name in along}
        mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),), mesh_dim_names=("tp",))
        for layer in model.model.layers:
            parallelize_module(layer, mesh, plan)
    return model


def norm_of(model: torch.nn.Module, kind: str) -> torch.Tensor:
    if kind != "tp":
        return torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    # clip_grad_norm_ accepts either parameters of a mesh or ordinary ones, but not both.
    gradients = [parameter.grad for parameter in model.parameters()]
    whole = [each.full_tensor() if isinstance(each, torch.distributed.tensor.DTensor) else each for each in gradients]
    return torch.nn.utils.get_total_norm(whole)


def measure(way: str, folder: str, corpus: str, steps: int) -> list[dict]:
    """The log of each step of a way of training, with fixed weights."""
    warnings.simplefilter("ignore")
    ranks, kind, micro_batches, watched = WAYS[way]
    rank = torch.distributed.get_rank() if ranks > 1 else 0
    replicas, replica = (1, 0) if kind == "tp" else (ranks, rank)
    model = transformers.LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).train()
    model = cut(model, kind) if ranks > 1 else model
    samples, size = read_samples(pathlib.Path(corpus), steps), BATCH // (replicas * micro_batches)
    logs = str(pathlib.Path(folder).parent / f"{way}".replace(" ", "-"))
    adviser = copus.Adviser(batch=BATCH, sequence_length=LENGTH, directory=logs)
    if watched:
        adviser.watch(model)
    for tokens in samples.split(BATCH):
        model.zero_grad()
        for index in range(micro_batches):
            begin = (index * replicas + replica) * size
            part = tokens[begin : begin + size]
            waits = kind == "ddp no_sync" and index < micro_batches - 1
            with model.no_sync() if waits else contextlib.nullcontext():
                logits = model(input_ids=part[:, :-1]).logits.flatten(0, 1)
                (torch.nn.functional.cross_entropy(logits, part[:, 1:].flatten()) / micro_batches).backward()
            if index == 0 and not watched:
                adviser.first_micro_batch(model.parameters(), samples=size)
        adviser.step(norm_of(model, kind), samples=BATCH, seconds=1.0)
    adviser.close()
    return read_log(logs) if rank == 0 else []


def read_log(folder: str) -> list[dict]:
    return [json.loads(line) for line in pathlib.Path(folder, "run.jsonl").read_text().splitlines()]


def run_copus(program: str, folder: str, corpus: str, steps: int) -> list[dict]:
    logs = str(pathlib.Path(folder).parent / "copus")
    settings = {
        "model.init_from": folder, "data.train": corpus, "data.held_out_fraction": 0, "train.seed": SEED,
        "data.document_separator": "", "train.sequence_length": LENGTH, "train.global_batch": BATCH,
        "train.micro_batch": BATCH // 2, "train.max_steps": steps, "train.precision": "fp32", "optimizer.lr": 1e-30,
        "evaluate.interval": 0,
    }  # fmt: skip
    config = pathlib.Path(folder).parent / "run.toml"
    sections: dict[str, dict] = {}
    for name, value in settings.items():
        sections.setdefault(name.split(".")[0], {})[name.split(".")[1]] = value
    config.write_text("".join(
        f"[{section}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items())
        for section, keys in sections.items()))  # fmt: skip
    subprocess.run([program, "train", str(config), "--run-dir", logs], check=True, stdout=subprocess.DEVNULL)
    return read_log(logs)


def run_gns(program: str, folder: str, corpus: str) -> dict:
    command = [program, "gns", "--model", folder, "--data", corpus, "--sequence-length", str(LENGTH), "--batches", "32",
               "--large-batch", "64", "--json"]  # fmt: skip
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])


def ratio(lines: list[dict]) -> float:
    """tr(Sigma) / |G|^2 from the norms of all steps, with equal weights."""
    small, large = lines[0]["small_batch"], lines[0]["global_batch"]
    a = sum(line["small_batch_squared_norm"] for line in lines)
    c = sum(line["grad_norm"] ** 2 for line in lines)
    return (a - c) / (1 / small - 1 / large) / ((large * c - small * a) / (large - small))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=str(ROOT / "build/copus"), help="copus, with copus-torch beside it")
    parser.add_argument("--only", action="append", choices=[*WAYS, "Copus"], help="default: all")
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        folder, corpus = f"{temporary}/model", f"{temporary}/corpus.txt"
        build_model(folder)
        write_corpus(pathlib.Path(corpus))
        logs = {}
        for way in arguments.only or [*WAYS, "Copus"]:
            if way == "Copus":
                logs[way] = run_copus(arguments.program, folder, corpus, arguments.steps)
            elif WAYS[way][0] == 1:
                logs[way] = measure(way, folder, corpus, arguments.steps)
            else:
                logs[way] = run_on_ranks(WAYS[way][0], measure, way, folder, corpus, arguments.steps)[0]
            print(f"  {way}: {ratio(logs[way]):.9g}", file=sys.stderr, flush=True)
        reference = run_gns(arguments.program, folder, corpus)
    rows = {
        way: {"small_batch": lines[0]["small_batch"], "noise_scale": ratio(lines),
              "published": [lines[-1][name] for name in ("noise_scale", "noise_scale_low", "noise_scale_high")]}
        for way, lines in logs.items()
    }  # fmt: skip
    first = next(iter(rows.values()))["noise_scale"]
    agree = True
    for way, row in rows.items():
        row["relative_difference"] = row["noise_scale"] / first - 1
        low, high = (row["published"][i] if row["published"][i] is not None else math.inf for i in (1, 2))
        row["meets_gns"] = low <= (reference["noise_scale_high"] or math.inf) and high >= reference["noise_scale_low"]
        if way in SAME_SMALL_BATCH:
            agree &= abs(row["relative_difference"]) <= TOLERANCE
        agree &= row["meets_gns"]
    if arguments.json:
        print(json.dumps({"ways": rows, "gns": reference, "agree": agree}))
    else:
        print("| trained by | small batch | noise scale of all steps | to the first | published, 95 % | meets gns |")
        print("| --- | --- | --- | --- | --- | --- |")
        for way, row in rows.items():
            published = " .. ".join("?" if value is None else f"{value:.4g}" for value in row["published"])
            print(f"| {way} | {row['small_batch']:g} | {row['noise_scale']:.6g} | {row['relative_difference']:+.1e} | "
                  f"{published} | {'yes' if row['meets_gns'] else 'no'} |")  # fmt: skip
        print(f"\ncopus gns: {reference['noise_scale']:.4g} ({reference['noise_scale_low']:.4g} .. "
              f"{reference['noise_scale_high']:.4g})")  # fmt: skip
    sys.exit(0 if agree else 1)


if __name__ == "__main__":
    main()
