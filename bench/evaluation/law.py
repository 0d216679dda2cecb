#!/usr/bin/env python3
"""Makes a batch ramp for `adapt.policy = "steps"` from a published law and `copus plan`, without measurements.

    bench/evaluation/law.py MODEL CLUSTER GPUS SEQUENCE_LENGTH TOKENS BATCH... [--critical BATCH] [--space SPACE]

Prints the settings of a run of so many tokens that follows the ramp, for `copus simulate` or an arm of `copus compare`.
TOKENS is a number such as 1e10; batches are in sequences.

The law is that of Bergsma et al. 2025 (arXiv 2505.13738): after D tokens the critical batch is 0.0471 D^0.462 sequences
of 2048. The law was not fitted to small models. For them, --critical gives the critical batch at the end of the run; it
still grows with the same exponent. At each point of the run the ramp has the batch B with the highest
predicted Goodput,

    B / (seconds of a step) / (1 + B / critical batch),

among the given batches, but never a smaller batch than before. Layout and micro-batch stay: they are those in which
`copus plan` predicts the shortest time of the whole ramp.
"""

import argparse
import json
import math
import subprocess

EXPONENT = 0.462
FIRST_TOKENS = 1e6  # the law says nothing about earlier tokens
GROWTH = 1.02  # tokens from one point of the ramp to the next
LAYOUT = ("data_parallel", "tensor_parallel", "pipeline_parallel", "virtual_stages", "schedule", "sequence_parallel",
          "zero_stage", "recompute", "micro_batch")
# What `copus plan` may choose: the space of starts/, and the two of the experiments in this folder.
SPACES = {
    "starts": ["--schedule", "1f1b", "--recompute", "none", "--sp", "0", "1"],
    "wide": ["--schedule", "1f1b", "interleaved", "zb-h1", "--sp", "0", "1"],
    "narrow": ["--schedule", "1f1b", "--recompute", "none", "--sp", "0"],
}
MOST_VIRTUAL_STAGES = 4


def critical_tokens(tokens: float) -> float:
    """Returns the critical batch, in tokens, after so many tokens."""
    return 0.0471 * tokens**EXPONENT * 2048


def planned_seconds(program: str, job: dict, batches: list[int]) -> dict:
    """Returns the predicted seconds of a step by layout and batch, with ZeRO 0 or 1, in the job's space."""
    command = [program, "plan", "--json", "--top", "1000000", "--precision", job.get("precision", "bf16"),
               "--zero", "0", "1", *SPACES[job.get("space", "starts")], "--model", job["model"],
               "--cluster", job["cluster"], "--gpus", str(job["gpus"]),
               "--sequence-length", str(job["sequence_length"]), "--global-batch", ",".join(map(str, batches))]
    plan = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    seconds = {}
    for batch in plan["batches"]:
        for layout in batch["layouts"]:
            if layout["virtual_stages"] > MOST_VIRTUAL_STAGES:
                continue
            of_layout = seconds.setdefault(tuple(layout[key] for key in LAYOUT), {})
            of_layout[batch["global_batch"]] = layout["step_seconds"]
    return seconds


def points(tokens: float) -> list[float]:
    """Returns the tokens at which the ramp may change, up to the end of the run."""
    count = math.ceil(math.log(tokens / FIRST_TOKENS) / math.log(GROWTH))
    return [0.0] + [FIRST_TOKENS * GROWTH**i for i in range(count)]


def ramp(seconds_by_batch: dict, sequence_length: int, tokens: float, at_end: float | None = None) -> tuple:
    """Returns the predicted seconds of the whole ramp, and its (first consumed sample, batch) pairs. If given, `at_end`
    replaces the law's critical batch at the end, in sequences."""
    schedule, elapsed = [], 0.0
    if at_end is None:
        at_end = critical_tokens(tokens) / sequence_length
    batch = min(seconds_by_batch)
    starts = points(tokens)
    for begin, end in zip(starts, starts[1:] + [tokens]):
        critical = at_end * (max(begin, FIRST_TOKENS) / tokens) ** EXPONENT
        larger = [b for b in seconds_by_batch if b >= batch]
        best = max(larger, key=lambda b: b / seconds_by_batch[b] / (1 + b / critical))
        # Each batch of a schedule has to last for two steps.
        lasts = not schedule or begin / sequence_length >= schedule[-1][0] + 2 * batch
        if not schedule or (best > batch and lasts):
            batch = best
            schedule.append((math.ceil(begin / sequence_length), batch))
        # The law's tokens are those of a small batch; a larger batch needs more tokens for the same progress.
        elapsed += (end - begin) / sequence_length * (1 + batch / critical) / batch * seconds_by_batch[batch]
    return elapsed, schedule


def law_settings(program: str, job: dict, batches: list[int], tokens: float, at_end: float | None = None) -> list[str]:
    """Returns the settings of the run that follows the ramp in its best planned layout; `at_end` as in `ramp`."""
    planned = planned_seconds(program, job, batches)
    (_, schedule), layout = min(
        ((ramp(seconds, job["sequence_length"], tokens, at_end), layout) for layout, seconds in planned.items()),
        key=lambda found: found[0][0])
    sections = {"recompute": "train", "micro_batch": "train"}
    settings = [f"{sections.get(key, 'parallel')}.{key}={json.dumps(value)}" for key, value in zip(LAYOUT, layout)]
    text = " ".join(f"{begin}:{batch}" for begin, batch in schedule)
    return settings + [f"train.global_batch={schedule[0][1]}", "adapt.policy=steps", f"adapt.schedule={text}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("cluster")
    for name, kind in (("gpus", int), ("sequence_length", int), ("tokens", float)):
        parser.add_argument(name, type=kind)
    parser.add_argument("batches", type=int, nargs="+")
    parser.add_argument("--critical", type=float, help="the critical batch at the end of the run")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--space", choices=SPACES, default="wide")
    parser.add_argument("--program", default="build/copus")
    options = parser.parse_args()
    keys = ("model", "cluster", "gpus", "sequence_length", "precision", "space")
    job = {key: getattr(options, key) for key in keys}
    print("\n".join(law_settings(options.program, job, options.batches, options.tokens, options.critical)))


if __name__ == "__main__":
    main()
