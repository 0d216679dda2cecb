#!/usr/bin/env python3
"""Computes, without a GPU, the minimum time of a training step on an H100 or H200, and so the highest possible MFU.

It uses published rates, which configs/clusters/ lists with their sources: matrix products at the best measured rate,
attention at FlashAttention-2's rate for the length, everything else at the bandwidth of a copy. Parts do not overlap,
as in `copus bench step`, which computes the same floors from rates that it measures itself. Prints the table of
bench/gpu/README.md. Standard library only.
"""

import dataclasses
import tomllib

from results import ROOT, Case, cases_by_importance

CLUSTERS = ("h100-sxm", "h200-sxm")
TOKENS_PER_STEP = 32768
# The speed of FlashAttention-2 forward and backward, causal, on an H100: TFLOP/s with heads of 64 divided by TFLOP/s
# with heads of 128 (github.com/Dao-AILab/flash-attention, assets/flash2_h100_fwd_bwd_benchmark.png).
HEADS_OF_64 = {1024: 192 / 221, 2048: 232 / 265, 4096: 257 / 294}
BF16_BYTES = 2
# AdamW reads weight, gradient and moments, and writes weight and moments. Computing the norm and zeroing the gradient
# need one more pass each. The bf16 weights are rounded from the fp32 weights.
OPTIMIZER_BYTES = 4 * (7 + 2) + 4 + 2


@dataclasses.dataclass
class Floor:
    parts: dict[str, float]  # seconds of a step
    seconds: float
    tokens_per_second: float
    mfu: float  # of the data sheet's peak


def device_of(cluster: str) -> dict:
    return tomllib.loads((ROOT / f"configs/clusters/{cluster}.toml").read_text(encoding="utf-8"))["device"]


def cases() -> list[Case]:
    wanted = {(case.model, case.sequence) for case in cases_by_importance()}
    return [Case(model, sequence) for model, sequence in sorted(wanted, key=lambda c: (c[0][0] == "l", c))]


def elementwise_elements_per_token(config: dict) -> float:
    """The count of copus/workshop/bench/step_bench.cpp: each operand of the element-wise kernels once."""
    hidden, ffn = config["hidden_size"], config["intermediate_size"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    norms = 2 * (4 + 4) * hidden
    rotary = 2 * 2 * (heads + kv_heads) * (hidden // heads)
    swiglu = (3 + 6) * ffn
    ends = (2 + 2 + 4 + 3 - 2) * hidden + 2 * config["vocab_size"]
    return config["num_hidden_layers"] * (norms + rotary + swiglu) + ends


def floor_of(case: Case, device: dict, tokens: int) -> Floor:
    config = case.config()
    matmul_rate, bandwidth = device["matmul_teraflops"] * 1e12, device["memory_gigabytes_per_second"] * 1e9
    layers, hidden = config["num_hidden_layers"], config["hidden_size"]
    convention = 12 * layers * hidden * case.sequence
    # Per element of the causal half, the scores take 2 operations, and so does their product with the values. The
    # backward pass takes 2.5 times as many operations.
    causal_forward = tokens * layers * 2 * 2 * case.sequence * hidden / 2
    share = 1.0 if hidden // config["num_attention_heads"] != 64 else HEADS_OF_64[case.sequence]
    forward = dict(device["attention_forward"])[case.sequence] * share * matmul_rate
    backward = dict(device["attention_backward"])[case.sequence] * share * matmul_rate
    parts = {
        "matmul": tokens * (case.flops_per_token() - convention) / matmul_rate,
        "attention": causal_forward / forward + 2.5 * causal_forward / backward,
        "elementwise": tokens * elementwise_elements_per_token(config) * BF16_BYTES / bandwidth,
        "optimizer": case.parameters() * OPTIMIZER_BYTES / bandwidth,
    }
    seconds = sum(parts.values())
    mfu = tokens * case.flops_per_token() / seconds / (device["peak_teraflops"] * 1e12)
    return Floor(parts, seconds, tokens / seconds, mfu)


def markdown() -> list[str]:
    lines = [
        "| model | sequence | matmul | attention | element-wise | optimizer | step, ms | tokens/s | MFU in reach "
        "| on H200 |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for case in cases():
        h100, h200 = (floor_of(case, device_of(cluster), TOKENS_PER_STEP) for cluster in CLUSTERS)
        parts = " | ".join(f"{seconds * 1e3:.0f}" for seconds in h100.parts.values())
        lines.append(
            f"| {case.model} | {case.sequence} | {parts} | {h100.seconds * 1e3:.0f} | {h100.tokens_per_second:,.0f} "
            f"| {h100.mfu * 100:.1f} % | {h200.mfu * 100:.1f} % |"
        )
    return lines


if __name__ == "__main__":
    print("\n".join(markdown()))
