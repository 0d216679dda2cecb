#!/usr/bin/env python3
"""Measures what the adviser costs in a PyTorch training step: pairs of steps with and without it, in one process.

See README.md in this folder. Prints a line for each shape of bench/pytorch and for two stacks of linear layers, with
the median and quartiles of the ratios, in percent.
"""

import argparse
import json
import pathlib
import statistics
import sys
import tempfile
import time
import warnings

import torch
import transformers

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "build-python/python"), str(ROOT / "bench/pytorch")]

import copus  # noqa: E402
from shapes import SHAPES, Shape  # noqa: E402

MICRO_BATCHES = 2
WARM_UP_STEPS = 20
# Stacks of linear layers: their number, their width, and the rows of a micro-batch.
LAYERS = {"16 small tensors": (8, 64, 32), "24 tensors of 7 M numbers": (12, 768, 256)}


class Loop:
    """A training step as a user writes it. With an adviser, also the two calls, whose own seconds are recorded."""

    def __init__(self, name: str, logs: str, every: int, is_listed: bool):
        torch.manual_seed(0)
        if name in LAYERS:
            layers, width, self.micro_batch = LAYERS[name]
            linear = [torch.nn.Linear(width, width) for _ in range(layers)]
            self.model = torch.nn.Sequential(*[part for each in linear for part in (each, torch.nn.ReLU())])
            length = 1
        else:
            shape: Shape = SHAPES[name]
            config = transformers.LlamaConfig(
                vocab_size=shape.vocab, hidden_size=shape.hidden, intermediate_size=shape.ffn,
                num_hidden_layers=shape.layers, num_attention_heads=shape.heads, num_key_value_heads=shape.kv_heads,
                max_position_embeddings=shape.sequence_length, use_cache=False,
            )  # fmt: skip
            self.model = transformers.LlamaForCausalLM(config).train()
            self.tokens = torch.randint(shape.vocab, (shape.micro_batch, shape.sequence_length))
            self.micro_batch, length = shape.micro_batch, shape.sequence_length
        self.name, self.every, self.steps = name, every, 0
        self.listed = list(self.model.parameters()) if is_listed else None
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, weight_decay=0.1, fused=True)
        self.batch = MICRO_BATCHES * self.micro_batch
        self.adviser = copus.Adviser(batch=self.batch, sequence_length=length, directory=logs)
        self.seconds = 1.0

    def loss(self) -> torch.Tensor:
        if self.name not in LAYERS:
            return self.model(input_ids=self.tokens, labels=self.tokens).loss
        inputs = torch.randn(self.micro_batch, LAYERS[self.name][1])
        return (self.model(inputs) - inputs * torch.randn(())).square().mean()

    def step(self, advised: bool) -> tuple[float, float]:
        """Seconds of the step, and of the adviser's calls in it."""
        begin, own = time.perf_counter(), 0.0
        self.steps += advised
        self.optimizer.zero_grad()
        for index in range(MICRO_BATCHES):
            (self.loss() / MICRO_BATCHES).backward()
            if advised and index == 0 and self.steps % self.every == 0:
                called = time.perf_counter()
                self.adviser.first_micro_batch(self.listed or self.model.parameters(), samples=self.micro_batch)
                own += time.perf_counter() - called
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        if advised:
            called = time.perf_counter()
            self.adviser.step(norm, samples=self.batch, seconds=self.seconds, lr=1e-4)
            own += time.perf_counter() - called
        self.seconds = time.perf_counter() - begin
        if not advised:
            self.adviser.forget_step()  # its backward passes do not belong to the next step
        return self.seconds, own


def measure(name: str, pairs: int, threads: int, every: int, is_listed: bool) -> dict:
    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory() as folder:
        loop = Loop(name, f"{folder}/logs", every, is_listed)
        for _ in range(WARM_UP_STEPS):
            loop.step(advised=True)
        ratios, own_seconds, plain_seconds = [], [], []
        for index in range(pairs):
            first_advised = index % 2 == 0
            one, two = loop.step(first_advised), loop.step(not first_advised)
            (advised, own), (plain, _) = (one, two) if first_advised else (two, one)
            ratios.append(100 * (advised / plain - 1))
            own_seconds.append(own)
            plain_seconds.append(plain)
        loop.adviser.close()
    # One step in `every` is measured, so the cost is the mean over `every` consecutive steps.
    own_seconds = [sum(own_seconds[i : i + every]) / every for i in range(0, pairs - every + 1, every)]
    step = statistics.median(plain_seconds)
    shares = [100 * own / step for own in own_seconds]
    return {
        "pairs": pairs, "seconds_per_step": step, "cost_percent": statistics.median(ratios),
        "quartiles": statistics.quantiles(ratios, n=4)[::2], "own_percent": statistics.median(shares),
        "own_quartiles": statistics.quantiles(shares, n=4)[::2], "own_seconds": statistics.median(own_seconds),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=[*SHAPES, *LAYERS], action="append", help="default: every shape")
    parser.add_argument("--pairs", type=int, default=24)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--every", type=int, default=1, help="of how many steps one is measured")
    parser.add_argument("--listed", action="store_true", help="makes the list of parameters once, not in each step")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    results = {
        name: measure(name, arguments.pairs, arguments.threads, arguments.every, arguments.listed)
        for name in arguments.shape or [*SHAPES, *LAYERS]
    }
    if arguments.json:
        print(json.dumps(results))
        return
    for name, found in results.items():
        low, high = found["quartiles"]
        own_low, own_high = found["own_quartiles"]
        print(f"shape ({name}), {1e3 * found['seconds_per_step']:.2f} ms a step, {found['pairs']} pairs: whole steps "
              f"{found['cost_percent']:+.2f} % ({low:+.2f} .. {high:+.2f}); the two calls alone "
              f"{1e3 * found['own_seconds']:.3f} ms, {found['own_percent']:.3f} % ({own_low:.3f} .. {own_high:.3f})")  # fmt: skip


if __name__ == "__main__":
    main()
