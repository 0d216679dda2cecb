#!/usr/bin/env python3
"""What the adviser costs in a PyTorch training step: pairs of steps with and without it, in one process.

See README.md beside it. Prints a line for each shape of bench/pytorch: median and quartiles of the ratios, in percent.
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
WARM_UP_STEPS = 3


class Loop:
    """A training step as a user writes it; with an adviser also the two calls, whose own seconds are kept."""

    def __init__(self, shape: Shape, logs: str):
        config = transformers.LlamaConfig(
            vocab_size=shape.vocab, hidden_size=shape.hidden, intermediate_size=shape.ffn,
            num_hidden_layers=shape.layers, num_attention_heads=shape.heads, num_key_value_heads=shape.kv_heads,
            max_position_embeddings=shape.sequence_length, use_cache=False,
        )  # fmt: skip
        torch.manual_seed(0)
        self.model = transformers.LlamaForCausalLM(config).train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, weight_decay=0.1, fused=True)
        self.tokens = torch.randint(shape.vocab, (shape.micro_batch, shape.sequence_length))
        self.batch, self.micro_batch = MICRO_BATCHES * shape.micro_batch, shape.micro_batch
        self.adviser = copus.Adviser(batch=self.batch, sequence_length=shape.sequence_length, directory=logs)
        self.seconds = 1.0

    def step(self, advised: bool) -> tuple[float, float]:
        """Seconds of the step, and of the adviser's calls in it."""
        begin, own = time.perf_counter(), 0.0
        self.optimizer.zero_grad()
        for index in range(MICRO_BATCHES):
            (self.model(input_ids=self.tokens, labels=self.tokens).loss / MICRO_BATCHES).backward()
            if advised and index == 0:
                called = time.perf_counter()
                self.adviser.first_micro_batch(self.model.parameters(), samples=self.micro_batch)
                own += time.perf_counter() - called
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        if advised:
            called = time.perf_counter()
            self.adviser.step(norm, samples=self.batch, seconds=self.seconds, lr=1e-4)
            own += time.perf_counter() - called
        self.seconds = time.perf_counter() - begin
        return self.seconds, own


def measure(shape: Shape, pairs: int, threads: int) -> dict:
    torch.set_num_threads(threads)
    with tempfile.TemporaryDirectory() as folder:
        loop = Loop(shape, f"{folder}/logs")
        for _ in range(WARM_UP_STEPS):
            loop.step(advised=True)
        ratios, shares = [], []
        for index in range(pairs):
            first_advised = index % 2 == 0
            one, two = loop.step(first_advised), loop.step(not first_advised)
            (advised, own), (plain, _) = (one, two) if first_advised else (two, one)
            ratios.append(100 * (advised / plain - 1))
            shares.append(100 * own / plain)
            print(f"  {ratios[-1]:+.2f} % {shares[-1]:.3f} %", file=sys.stderr, flush=True)
        loop.adviser.close()
    return {
        "pairs": pairs, "seconds_per_step": loop.seconds, "cost_percent": statistics.median(ratios),
        "quartiles": statistics.quantiles(ratios, n=4)[::2], "own_percent": statistics.median(shares),
        "own_quartiles": statistics.quantiles(shares, n=4)[::2],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, action="append", help="default: every shape")
    parser.add_argument("--pairs", type=int, default=24)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    results = {name: measure(SHAPES[name], arguments.pairs, arguments.threads) for name in arguments.shape or SHAPES}
    if arguments.json:
        print(json.dumps(results))
        return
    for name, found in results.items():
        low, high = found["quartiles"]
        own_low, own_high = found["own_quartiles"]
        print(f"shape ({name}), {found['seconds_per_step']:.2f} s a step, {found['pairs']} pairs: whole steps "
              f"{found['cost_percent']:+.2f} % ({low:+.2f} .. {high:+.2f}); the two calls alone "
              f"{found['own_percent']:.3f} % ({own_low:.3f} .. {own_high:.3f})")  # fmt: skip


if __name__ == "__main__":
    main()
