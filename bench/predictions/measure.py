#!/usr/bin/env python3
"""How well are step times predicted? Draws random configurations of 1 to 8 ranks, predicts their step times from a
description of the cluster alone, and measures them by running the program. Then learns from the first 10 measurements,
and compares the predictions for the other configurations before and after learning. There are three parts:

wall      the real clock of this machine, which `copus profile --machine` describes; there are no links
virtual   the virtual clock, two nodes. Compute time is the CPU time that the ranks' threads take on this machine; the
          device is described as in `wall`.
modelled  the same two nodes, but compute time comes from a fixed rate, so every run gives the same result

Takes about 10 minutes on two cores that do nothing else. --parts chooses parts. Parts that are already in --output are
not repeated, so an interrupted run can be continued. Prints for each part the median error, Kendall's tau-b and the
top-1 regret: how many samples/s are lost by using the configuration with the fastest prediction instead of the
configuration with the fastest measurement.
"""

import argparse
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent

LAYERS, HEADS, SEQUENCE_LENGTH = 8, 4, 128
MODEL = {
    "architecture": "llama",
    "vocab_size": 256,
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
}
# Links of two small nodes of four ranks; the part with a modelled rate adds it.
LINKS = """
ranks_per_node = 4
within_node = { latency_microseconds = 5.0, gigabytes_per_second = 4.0 }
between_nodes = { latency_microseconds = 100.0, gigabytes_per_second = 0.625 }
"""
RATE = "teraflops_per_rank = 0.1\n"
PARTS = {
    "wall": {"clock": "real", "steps": 3, "rounds": 3},
    "virtual": {"clock": "virtual", "steps": 3, "rounds": 2},
    "modelled": {"clock": "virtual", "steps": 1, "rounds": 1},
}


def draw(rng: random.Random) -> str:
    """A configuration that can train the model, as `copus profile --cell` names it."""
    while True:
        ranks = rng.choice([1, 2, 3, 4, 6, 8])
        divisors = [n for n in range(1, ranks + 1) if ranks % n == 0]
        t = rng.choice([n for n in divisors if HEADS % n == 0])
        p = rng.choice([n for n in divisors if ranks // t % n == 0])
        d = ranks // (t * p)
        schedule = rng.choice(["gpipe", "1f1b", "zb-h1", "interleaved"]) if p > 1 else "1f1b"
        v = rng.choice([n for n in (2, 4) if p * n <= LAYERS] or [1]) if schedule == "interleaved" else 1
        micro_batch, micro_batches = rng.choice([1, 2, 4]), rng.choice([1, 2, 4, 8])
        batch = d * micro_batch * micro_batches
        if not 4 <= batch <= 24 or (schedule == "interleaved" and (v == 1 or micro_batches % p)):
            continue
        if p > LAYERS:
            continue
        sequence_parallel = int(t > 1 and rng.random() < 0.5)
        zero = int(d > 1 and rng.random() < 0.5)
        recompute = rng.choice(["none", "none", "attention", "full"])
        return (f"d={d},t={t},p={p},B={batch},b={micro_batch},v={v},schedule={schedule},sp={sequence_parallel},"
                f"zero={zero},recompute={recompute}")


def draw_all(count: int, seed: int) -> list[str]:
    rng, cells = random.Random(seed), []
    while len(cells) < count:
        cell = draw(rng)
        if cell not in cells:
            cells.append(cell)
    return cells


def run(command: list[str]) -> str:
    result = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if result.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\nended with {result.returncode}")
    return result.stdout


def write_run(folder: pathlib.Path) -> pathlib.Path:
    corpus = folder / "corpus.txt"
    corpus.write_text("".join(f"{i} green bottles, {i * i} on the wall\n" for i in range(20000)))
    lines = ["[model]"] + [f"{key} = {json.dumps(value)}" for key, value in MODEL.items()]
    lines += ["[data]", f'train = "{corpus}"', "held_out_fraction = 0.0",
              "mask_across_documents = false"]
    lines += ["[train]", f"sequence_length = {SEQUENCE_LENGTH}", "max_steps = 1", 'precision = "fp32"']
    path = folder / "run.toml"
    path.write_text("\n".join(lines) + "\n")
    return path


def device_of(machine: pathlib.Path) -> str:
    """The device's table of this machine's description."""
    return "".join(line for line in machine.read_text().splitlines(keepends=True) if line.startswith("device = "))


def kendall_tau(a: list[float], b: list[float]) -> float:
    def sign(x: float) -> int:
        return (x > 0) - (x < 0)

    pairs = [(sign(a[i] - a[j]), sign(b[i] - b[j])) for i in range(len(a)) for j in range(i)]
    untied_a, untied_b = sum(x != 0 for x, _ in pairs), sum(y != 0 for _, y in pairs)
    return sum(x * y for x, y in pairs) / (untied_a * untied_b) ** 0.5


def judge(rows: list[dict], field: str) -> dict:
    """How well `field` predicts the measured values of the rows."""
    errors = [abs(row[field] / row["measured_seconds"] - 1) for row in rows]
    predicted = [row["global_batch"] / row[field] for row in rows]
    measured = [row["global_batch"] / row["measured_seconds"] for row in rows]
    chosen = measured[predicted.index(max(predicted))]
    return {"median_error": statistics.median(errors), "worst_error": max(errors),
            "top1_regret": 1 - chosen / max(measured),
            "kendall_tau": kendall_tau([row[field] for row in rows], [row["measured_seconds"] for row in rows])}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--copus", default="build/copus")
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=["modelled", "virtual", "wall"])
    parser.add_argument("--cells", type=int, default=30)
    parser.add_argument("--learn-from", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", default="runs/predictions.json", help="results, part by part")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()

    output = ROOT / arguments.output
    output.parent.mkdir(parents=True, exist_ok=True)
    what = {"cells": draw_all(arguments.cells, arguments.seed), "learn_from": arguments.learn_from}
    known = json.loads(output.read_text()) if output.exists() else {}
    results = known if known.get("what") == what else {"what": what, "parts": {}}
    copus = str(pathlib.Path(arguments.copus).resolve())
    with tempfile.TemporaryDirectory(prefix="copus_predictions_") as name:
        folder = pathlib.Path(name)
        config, machine = write_run(folder), folder / "machine.toml"
        for part in arguments.parts:
            if part in results["parts"]:
                continue
            settings, cluster = PARTS[part], folder / f"{part}.toml"
            if part == "modelled":
                cluster.write_text(LINKS + RATE)
            else:
                if not machine.exists():
                    run([copus, "profile", "--machine", str(machine), "--precision", "fp32"])
                cluster.write_text(machine.read_text() if part == "wall" else LINKS + device_of(machine))
            command = [copus, "profile", "--config", str(config), "--cluster", str(cluster),
                       "--set", f"cluster.clock={settings['clock']}", "--steps", str(settings["steps"]),
                       "--rounds", str(settings["rounds"]), "--learn-from", str(arguments.learn_from), "--json"]
            if part == "virtual":
                command += ["--set", "train.threads=1"]  # a rank's device is one core
            for cell in what["cells"]:
                command += ["--cell", cell]
            load = os.getloadavg()[0]
            results["parts"][part] = {**json.loads(run(command)), "load_before": load, "cluster": cluster.read_text()}
            output.write_text(json.dumps(results, indent=1))

    summary = {}
    for part in arguments.parts:
        judged = [row for row in results["parts"][part]["cells"] if not row["learned"]]
        summary[part] = {"judged": len(judged), "failed": results["parts"][part]["failed"],
                         "factors": results["parts"][part]["factors"], "before": judge(judged, "predicted_seconds"),
                         "after": judge(judged, "corrected_seconds")}
    if arguments.json:
        print(json.dumps({**summary, "cells": {part: results["parts"][part]["cells"] for part in arguments.parts}}))
        return 0
    for part in arguments.parts:
        print(f"\n{part}: seconds of a step, predicted and measured; * learned from\n")
        for row in results["parts"][part]["cells"]:
            print(f"{row['predicted_seconds']:10.4f}{row['corrected_seconds']:10.4f}{row['measured_seconds']:10.4f}"
                  f"{100 * row['relative_spread']:7.1f} % {'*' if row['learned'] else ' '} {row['cell']}")
        for when in ("before", "after"):
            scores = summary[part][when]
            print(f"  {when:7s} median error {100 * scores['median_error']:5.1f} %, worst {100 * scores['worst_error']:5.1f} "
                  f"%, regret {100 * scores['top1_regret']:4.1f} %, tau {scores['kendall_tau']:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
