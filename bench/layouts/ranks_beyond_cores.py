#!/usr/bin/env python3
"""Does throughput collapse when ranks outnumber the cores? Trains the same model with the same global batch on 1, 2, 4,
8 and 16 ranks of this machine and prints tokens/s (median and spread over the steps after the first two).

The work is the same in every row, so a machine with enough cores would be faster with more ranks. A machine with fewer
cores than ranks should at least not become much slower. Run nothing else meanwhile.
"""

import argparse
import json
import math
import os

from runs import ShortRuns, degrees_of, median_and_spread

MODEL = {
    "architecture": "llama",
    "vocab_size": 256,
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
}
LAYOUTS = ["d=1", "d=2", "t=2", "p=2", "d=2,t=2", "d=2,t=2,p=2", "d=2,t=4,p=2"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--copus", default="build/copus")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()

    runs = ShortRuns(arguments.copus, MODEL, sequence_length=256)
    rows = []
    for layout in LAYOUTS:
        ranks = math.prod(degrees_of(layout).values())
        batch = {"train.global_batch": 16, "train.micro_batch": 2, "train.threads": 0 if ranks == 1 else 1}
        records = runs.records(arguments.steps, {**degrees_of(layout), **batch})
        median, low, high = median_and_spread([record["tokens_per_second"] for record in records[2:]])
        rows.append({"layout": layout, "ranks": ranks, "tokens_per_second": median, "low": low, "high": high,
                     "final_loss": records[-1]["loss"]})
        if not arguments.json:
            print(f"{ranks:3d} ranks  {layout:11s} {median:9.0f} tokens/s  ({low:.0f} .. {high:.0f})", flush=True)
    if arguments.json:
        print(json.dumps({"cores": len(os.sched_getaffinity(0)), "rows": rows}))


if __name__ == "__main__":
    main()
