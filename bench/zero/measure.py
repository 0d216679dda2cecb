#!/usr/bin/env python3
"""Measures what ZeRO's stages cost in seconds and save in memory: see README.md in this folder."""

import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
COPUS = ROOT / "build" / "copus"

MODEL = {
    "architecture": "llama",
    "vocab_size": 2048,
    "hidden_size": 384,
    "intermediate_size": 1024,
    "num_hidden_layers": 8,
    "num_attention_heads": 6,
    "num_key_value_heads": 6,
}
SEQUENCE_LENGTH, MICRO_BATCH = 128, 4
STAGES = ["zero=0", "zero=1", "zero=2", "zero=3", "zero=3,reshard=0"]
LINKS = """
ranks_per_node = 2
within_node = { latency_microseconds = 5.0, gigabytes_per_second = 4.0 }
between_nodes = { latency_microseconds = 20.0, gigabytes_per_second = 1.25 }
teraflops_per_rank = 0.05
"""
NO_LINKS = """
ranks_per_node = 2
within_node = { latency_microseconds = 0.0, gigabytes_per_second = 1e9 }
between_nodes = { latency_microseconds = 0.0, gigabytes_per_second = 1e9 }
teraflops_per_rank = 0.05
"""


def bucket_elements() -> list[int]:
    hidden, ffn = MODEL["hidden_size"], MODEL["intermediate_size"]
    layer = 4 * hidden * hidden + 3 * hidden * ffn + 2 * hidden
    table = MODEL["vocab_size"] * hidden
    return [table] + [layer] * MODEL["num_hidden_layers"] + [table + hidden]


def run_file(folder: pathlib.Path, batch: int) -> pathlib.Path:
    text = pathlib.Path(folder / "text.txt")
    text.write_text("".join(f"line {i * i % 997} of some text, {i}\n" for i in range(20000)))
    lines = ["[model]"] + [f"{key} = {json.dumps(value)}" for key, value in MODEL.items()]
    lines += ["[data]", f'train = "{text}"', "mask_across_documents = false"]
    lines += ["[train]", f"sequence_length = {SEQUENCE_LENGTH}",
              f"global_batch = {batch}", f"micro_batch = {MICRO_BATCH}", "max_steps = 1000", 'precision = "fp32"']
    path = folder / f"run-{batch}.toml"
    path.write_text("\n".join(lines) + "\n")
    return path


def copus(*arguments: str) -> str:
    result = subprocess.run([COPUS, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        sys.exit(f"copus {' '.join(arguments)}: {result.stderr}")
    return result.stdout


def measure_cells(run: pathlib.Path, cluster: pathlib.Path, cells: list[str], clock: str, steps: int,
                  rounds: int) -> list[dict]:
    named = [word for cell in cells for word in ("--cell", cell)]
    printed = copus("profile", "--config", str(run), "--cluster", str(cluster), "--set", f"cluster.clock={clock}", "--steps",
                    str(steps), "--rounds", str(rounds), "--json", *named)
    return json.loads(printed)["cells"]


def link_seconds(ranks: int) -> dict[str, dict[int, float]]:
    """The measured seconds of one call, by operation and by size of the unsharded vector in bytes."""
    rows = json.loads(copus("bench", "comm", "--ranks", str(ranks), "--largest", str(16 << 20), "--rounds", "7", "--json"))["rows"]
    seconds: dict[str, dict[int, float]] = {}
    for row in rows:
        seconds.setdefault(row["operation"], {})[row["bytes"]] = row["seconds"]
    return seconds


def of_bytes(measured: dict[int, float], wanted: int) -> float:
    """Interpolates linearly between the two nearest measured sizes."""
    sizes = sorted(measured)
    low = max((size for size in sizes if size <= wanted), default=sizes[0])
    high = min((size for size in sizes if size >= wanted), default=sizes[-1])
    if low == high:
        return measured[low]
    share = (wanted - low) / (high - low)
    return measured[low] + share * (measured[high] - measured[low])


def extra_seconds(cell: str, micro_batches: int, links: dict[str, dict[int, float]]) -> float:
    """Seconds that stage 2 or 3 communicates in addition to stage 1."""
    stage = int(re.search(r"zero=(\d)", cell).group(1))
    if stage < 2:
        return 0.0
    reduce = sum(of_bytes(links["reduce_scatter"], 4 * elements) for elements in bucket_elements())
    gathers = [of_bytes(links["all_gather"], 4 * elements) for elements in bucket_elements()]
    extra = (micro_batches - 1) * reduce
    if stage == 3 and "reshard=0" not in cell:
        # With ZeRO-3 the forward pass gathers everything except the head, and the backward pass everything except the
        # embedding. No gather follows the update.
        extra += micro_batches * (2 * sum(gathers) - gathers[0] - gathers[-1]) - sum(gathers)
    return extra


def shared_memory(folder: pathlib.Path, cluster: pathlib.Path) -> list[dict]:
    rows = []
    for ranks in (2, 4):
        for micro_batches in (1, 4):
            run = run_file(folder, ranks * micro_batches * MICRO_BATCH)
            cells = [f"d={ranks},{stage}" for stage in STAGES]
            links = link_seconds(ranks)
            measured = measure_cells(run, cluster, cells, "real", 4, 3)
            base = measured[1]["measured_seconds"]
            for cell, result in zip(cells, measured):
                extra = extra_seconds(cell, micro_batches, links)
                rows.append({"part": "shared memory", "cell": cell, "micro_batches": micro_batches,
                             "seconds": result["measured_seconds"], "spread": result["relative_spread"],
                             "over_stage_1": result["measured_seconds"] / base, "allowed": 1.1 * (base + extra) / base,
                             "peak_bytes": result["peak_bytes"], "predicted_bytes": result["predicted_bytes"]})
                print("{part}: {cell}, {micro_batches} micro-batches: {seconds:.4f} s (spread {spread:.1%}), {over_stage_1:.3f} of "
                      "stage 1 (allowed {allowed:.3f}); peak {peak_bytes:.4g} bytes, predicted {predicted_bytes:.4g}".format(
                          **rows[-1]), flush=True)
    return rows


def modelled_seconds(cell: str, micro_batches: int) -> float:
    """Returns the modelled seconds of a rank's communication per step over the links between nodes. The operations run
    one after another, in rings of four ranks. The slowest link determines their time
    (copus/performance/link_cost.h)."""
    ranks, latency, rate = 4, 20e-6, 1.25e9
    stage = int(re.search(r"zero=(\d)", cell).group(1))
    one_way = [(ranks - 1) * (latency + 4 * elements / ranks / rate) for elements in bucket_elements()]
    everything = sum(one_way)
    if stage < 2:
        return 2 * everything  # an all-reduce, or a reduce-scatter and a gather
    if stage == 2:
        return (micro_batches + 1) * everything
    if "reshard=0" in cell:
        return micro_batches * everything + everything
    return micro_batches * (3 * everything - one_way[0] - one_way[-1])


def two_nodes(folder: pathlib.Path) -> list[dict]:
    rows = []
    clusters = {}
    for name, text in (("links", LINKS), ("no links", NO_LINKS)):
        clusters[name] = folder / f"{name.replace(' ', '-')}.toml"
        clusters[name].write_text(text)
    for micro_batches in (1, 4):
        run = run_file(folder, 4 * micro_batches * MICRO_BATCH)
        cells = [f"d=4,{stage}" for stage in STAGES] + ["d=4,zero=3,replicas=2"]
        with_links = measure_cells(run, clusters["links"], cells, "virtual", 1, 1)
        without = measure_cells(run, clusters["no links"], cells, "virtual", 1, 1)
        for cell, one, other in zip(cells, with_links, without):
            row = {"part": "two nodes", "cell": cell, "micro_batches": micro_batches,
                   "seconds": one["measured_seconds"], "without_links": other["measured_seconds"],
                   "predicted_seconds": one["predicted_seconds"]}
            text = ("{part}: {cell}, {micro_batches} micro-batches: {seconds:.5f} s, {without_links:.5f} s on links that "
                    "cost nothing; predicted {predicted_seconds:.5f} s")
            if "replicas" not in cell:
                row["communicating"] = modelled_seconds(cell, micro_batches)
                row["hidden"] = 1 - (row["seconds"] - row["without_links"]) / row["communicating"]
                text += "; {hidden:.1%} of {communicating:.5f} s hidden"
            rows.append(row)
            print(text.format(**row), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=pathlib.Path)
    parser.add_argument("--cluster", type=pathlib.Path, help="description of this machine (default: it is measured)")
    parser.add_argument("--parts", nargs="+", choices=["memory", "nodes"], default=["memory", "nodes"])
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        rows = []
        if "nodes" in arguments.parts:
            rows += two_nodes(folder)
        if "memory" in arguments.parts:
            cluster = arguments.cluster
            if cluster is None:
                cluster = folder / "here.toml"
                copus("profile", "--machine", str(cluster), "--precision", "fp32", "--device", "cpu")
            rows += shared_memory(folder, cluster)
    if arguments.output:
        arguments.output.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
