#!/usr/bin/env python3
"""Does the fastest layout depend on the global batch? Trains three layouts of the same ranks at three batch sizes on
the virtual clock of a cluster file, and prints samples per second for each. On this clock no process sleeps, and step
times are the modelled cluster's. If the cluster file gives teraflops_per_rank, all times are modelled and the table
repeats exactly. Exits with 1 if one layout is the fastest at every batch size.
"""

import argparse
import json
import sys

from runs import ShortRuns, degrees_of, median_and_spread

MODEL = {
    "architecture": "llama",
    "vocab_size": 256,
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
}
SEQUENCE_LENGTH = 128


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--copus", default="build/copus")
    parser.add_argument("--cluster", default="configs/clusters/two-small-nodes.toml")
    parser.add_argument("--layouts", nargs="+", default=["d=8", "d=2,t=4", "d=2,p=4"])
    parser.add_argument("--batches", nargs="+", type=int, default=[8, 32, 128])
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()

    runs = ShortRuns(arguments.copus, MODEL, SEQUENCE_LENGTH)
    rows = []
    for batch in arguments.batches:
        for layout in arguments.layouts:
            settings = {"train.global_batch": batch, "train.micro_batch": 1, "train.threads": 1,
                        "cluster.config": arguments.cluster, "cluster.clock": "virtual"}
            records = runs.records(arguments.steps, {**degrees_of(layout), **settings})
            median, low, high = median_and_spread([batch / record["step_seconds"] for record in records[1:]])
            rows.append({"global_batch": batch, "layout": layout, "samples_per_second": median, "low": low,
                         "high": high})
    fastest = {batch: max((row for row in rows if row["global_batch"] == batch),
                          key=lambda row: row["samples_per_second"])["layout"] for batch in arguments.batches}
    if arguments.json:
        print(json.dumps({"cluster": arguments.cluster, "rows": rows, "fastest": fastest}))
    else:
        print(f"samples per second on the virtual clock of {arguments.cluster}")
        print("global batch  " + "".join(f"{layout:>12s}" for layout in arguments.layouts) + "   fastest")
        for batch in arguments.batches:
            values = [row["samples_per_second"] for row in rows if row["global_batch"] == batch]
            print(f"{batch:12d}  " + "".join(f"{value:12.1f}" for value in values) + f"   {fastest[batch]}")
    return 0 if len(set(fastest.values())) > 1 else 1


if __name__ == "__main__":
    sys.exit(main())
