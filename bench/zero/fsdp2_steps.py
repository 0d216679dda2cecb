#!/usr/bin/env python3
"""Times training steps of PyTorch's FSDP2 (fully_shard) and DDP, both over Gloo. Uses the model, batch, ranks and
threads of measure.py, whose results these times complement."""

import argparse
import os
import statistics
import time

import torch
import torch.distributed as dist
import torch.multiprocessing
import transformers
from torch.distributed.fsdp import fully_shard

from measure import MICRO_BATCH, MODEL, SEQUENCE_LENGTH

WARM_UP_STEPS, STEPS = 2, 8


def make_model() -> torch.nn.Module:
    config = transformers.LlamaConfig(**{key: value for key, value in MODEL.items() if key != "architecture"},
                                      tie_word_embeddings=False, use_cache=False, attn_implementation="sdpa")
    return transformers.LlamaForCausalLM(config)


def run(rank: int, ranks: int, mode: str, micro_batches: int) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ.get("MASTER_PORT", "29611"))
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // ranks))
    torch.manual_seed(1)
    model = make_model()
    if mode == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(model)
    else:
        mesh = dist.init_device_mesh("cpu", (ranks,))
        for layer in model.model.layers:
            fully_shard(layer, mesh=mesh, reshard_after_forward=mode == "fsdp2")
        fully_shard(model, mesh=mesh, reshard_after_forward=mode == "fsdp2")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=False, foreach=True)
    seconds = []
    for _ in range(WARM_UP_STEPS + STEPS):
        dist.barrier()
        begin = time.perf_counter()
        for _ in range(micro_batches):
            tokens = torch.randint(MODEL["vocab_size"], (MICRO_BATCH, SEQUENCE_LENGTH))
            loss = model(input_ids=tokens, labels=tokens).loss
            (loss / micro_batches).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        dist.barrier()
        seconds.append(time.perf_counter() - begin)
    if rank == 0:
        print(f"{mode}, {ranks} ranks, {micro_batches} micro-batches: {statistics.median(seconds[WARM_UP_STEPS:]):.4f} s", flush=True)
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--micro-batches", type=int, nargs="+", default=[1, 4])
    arguments = parser.parse_args()
    for micro_batches in arguments.micro_batches:
        for mode in ("ddp", "fsdp2", "fsdp2-keeping"):
            torch.multiprocessing.spawn(run, args=(arguments.ranks, mode, micro_batches), nprocs=arguments.ranks)


if __name__ == "__main__":
    main()
