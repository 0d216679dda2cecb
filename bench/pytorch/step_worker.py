#!/usr/bin/env python3
"""Trains transformers' LlamaForCausalLM on request, for train_step.py. Each way of running PyTorch has a process.

Prints {"ready": true} after warming up. Then the process answers each line "run N" on stdin with one line,
{"seconds_per_step": the median of N training steps}; "quit" ends the process. `copus bench step --serve` has the same
protocol. Between requests the process blocks on stdin and uses no processor.
"""

import argparse
import dataclasses
import json
import statistics
import sys
import time

import torch
import transformers

from shapes import Shape
from trainer import Trainer

WARM_UP_STEPS = 3


def make_trainer(shape: Shape, compiled: bool) -> Trainer:
    config = transformers.LlamaConfig(
        vocab_size=shape.vocab,
        hidden_size=shape.hidden,
        intermediate_size=shape.ffn,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=shape.sequence_length,
        use_cache=False,
    )
    return Trainer(config, shape.sequence_length, shape.micro_batch, compile_scope="model" if compiled else "none")


def timed_step(trainer: Trainer) -> float:
    started = time.perf_counter()
    trainer.step()
    return time.perf_counter() - started


def answer(message: dict) -> None:
    print(json.dumps(message), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", choices=("eager", "compile"), required=True)
    parser.add_argument("--threads", type=int, required=True)
    for field in dataclasses.fields(Shape):
        parser.add_argument("--" + field.name.replace("_", "-"), type=int, required=True)
    arguments = parser.parse_args()

    torch.set_num_threads(arguments.threads)
    shape = Shape(**{field.name: getattr(arguments, field.name) for field in dataclasses.fields(Shape)})
    trainer = make_trainer(shape, compiled=arguments.mode == "compile")
    for _ in range(WARM_UP_STEPS):
        trainer.step()
    answer({"ready": True})

    for line in sys.stdin:
        match line.split():
            case ["run", count]:
                answer({"seconds_per_step": statistics.median(timed_step(trainer) for _ in range(int(count)))})
            case ["quit"]:
                return
            case _:
                sys.exit(f"expected 'run N' or 'quit', got {line!r}")


if __name__ == "__main__":
    main()
