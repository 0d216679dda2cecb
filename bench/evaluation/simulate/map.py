"""Maps where adapting gains and where it loses, in simulated runs of the paper's four jobs. Varies the true properties
of training and cluster, and compares the policy `copus` with `copus-paper` and with the static configuration that was
best in hindsight. README.md in this folder states what is judged. Nothing here is measured.

Usage: .venv/bin/python bench/evaluation/simulate/map.py [--program build/copus] [--part map|laws|wide|large|draws|told ...]

Runs one simulation after the other, from the repository's root. Simulations that results/map.json already has are not
repeated. At the end, results/map.md is written from results/map.json. Results are identified by their parameters alone:
after a change of the program or of a job's file, remove results/map.json, because it would mix old and new results.
"""

import argparse
import itertools
import json
import pathlib
import statistics
import subprocess
import sys
import time

FOLDER = pathlib.Path(__file__).resolve().parent
RESULTS = FOLDER / "results/map.json"
TABLES = FOLDER / "results/map.md"
CLUSTERS = "bench/evaluation/clusters"
JOBS = {"paper-3b": "h100-sxm", "paper-13b": "h100-sxm", "paper-32b": "h100-sxm", "paper-7b": "mi210"}
NETWORKS = ["as believed", "4x slower"]
PAUSES = ["plan", "45s"]
ALPHAS = [0, 0.25, 0.5]
CALIBRATIONS = [0.5, 1, 2, 4, 8]
TOKENS = 1e9
WIDE = ["adapt.zero_stages=[0,1]", 'adapt.recomputes=["none","full"]', "adapt.sequence_parallel=[false,true]"]
# Tokens to the end, for the jobs that only a simulation can reach.
LARGE = {"large-70b": 2e11, "large-405b": 2e11}


def cell(job, part, network="as believed", pause="plan", alpha=0, calibration=2, law="kaplan", worth="hyperbola",
         wide=False, tokens=TOKENS, seed=1234, told=False):
    return locals()


def cells_of(part):
    if part == "map":
        axes = itertools.product(JOBS, NETWORKS, PAUSES, ALPHAS, CALIBRATIONS)
        return [cell(job, part, network, pause, alpha, c) for job, network, pause, alpha, c in axes]
    if part == "laws":
        laws = [("bergsma", "hyperbola"), ("olmo", "hyperbola"), ("kaplan", "root")]
        return [cell(job, part, law=law, worth=worth) for job, (law, worth) in itertools.product(JOBS, laws)]
    if part == "wide":
        return [cell(job, part, network, wide=True) for job, network in itertools.product(JOBS, NETWORKS)]
    if part == "draws":
        axes = itertools.product(JOBS, NETWORKS, PAUSES, range(1, 4))
        return [cell(job, part, network, pause, seed=seed) for job, network, pause, seed in axes]
    if part == "told":
        axes = itertools.product(JOBS, ALPHAS, [0.5, 2, 8])
        return [cell(job, part, alpha=alpha, calibration=c, told=True) for job, alpha, c in axes]
    return [cell(job, part, calibration=c, tokens=tokens) for (job, tokens), c in
            itertools.product(LARGE.items(), [1, 2, 4])]


def command_of(cell, program):
    settings = [f"train.seed={cell['seed']}", f"cluster.truth_seed={cell['seed']}", *(WIDE if cell["wide"] else [])]
    if cell["told"]:
        settings += [f"adapt.alpha={cell['alpha']}", f"noise_scale.calibration={cell['calibration']}"]
    if cell["network"] != "as believed":
        settings += [f"cluster.truth={CLUSTERS}/{JOBS[cell['job']]}-links-4x-slower.toml"]
    pause = ["--pause", cell["pause"]] if cell["pause"] != "plan" else []
    return [program, "simulate", str(FOLDER / f"{cell['job']}.toml"), "--json", "--policy", "copus", "copus-paper",
            "--law", cell["law"], "--worth", cell["worth"], "--truth-alpha", str(cell["alpha"]),
            "--calibration", str(cell["calibration"]), "--tokens", str(cell["tokens"]), "--targets", "4", *pause,
            *(argument for setting in settings for argument in ("--set", setting))]


def outcome_of(cell, simulated, seconds):
    """The result of a simulation that is kept: for each target the time of every policy, and how the policies went."""
    targets = [{"loss": target["loss"], "critical_batch": target["critical_batch"],
                "best_static": target["best_static"], "clairvoyant_seconds": target["clairvoyant_seconds"],
                "seconds": {run["policy"]: run["targets"][i]["seconds"] for run in simulated["policies"]}}
               for i, target in enumerate(simulated["targets"])]
    runs = {run["policy"]: {key: run[key] for key in ("steps", "relayouts", "batch_changes", "pause_seconds", "last")}
            for run in simulated["policies"]}
    return {**cell, "targets": targets, "runs": runs, "seconds_to_simulate": round(seconds, 1)}


def write(outcomes):
    RESULTS.parent.mkdir(exist_ok=True)
    written = RESULTS.with_suffix(".part")
    written.write_text("[\n" + ",\n".join(json.dumps(outcome) for outcome in outcomes) + "\n]\n")
    written.replace(RESULTS)


def gain(target, over):
    """The share of the time of `over` that the policy `copus` saves; negative if it is slower."""
    other = target["best_static"]["seconds"] if over == "best static" else target["seconds"][over]
    return 1 - target["seconds"]["copus"] / other


def percent(share):
    """Formats a share; losses are bold to stand out."""
    text = f"{100 * share:+.1f}"
    return f"**{text}**" if share < 0 else text


def both_gains(outcome, target):
    return " / ".join(percent(gain(outcome["targets"][target], over)) for over in ("best static", "copus-paper"))


def table(header, rows):
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def map_tables(outcomes):
    text = ""
    for job, network, pause in itertools.product(JOBS, NETWORKS, PAUSES):
        found = {(o["calibration"], o["alpha"]): o for o in outcomes
                 if (o["part"], o["job"], o["network"], o["pause"]) == ("map", job, network, pause)}
        if not found:
            continue
        rows = [[f"c = {c}"] + [both_gains(found[c, alpha], -1) if (c, alpha) in found else "" for alpha in ALPHAS]
                for c in CALIBRATIONS]
        pauses = "as planned" if pause == "plan" else "of 45 s"
        text += f"\n### {job}, links {network}, pauses {pauses}\n\n"
        text += table(["", *(f"alpha {alpha}" for alpha in ALPHAS)], rows)
    return text


def summary_table(outcomes):
    """For each value of each axis: the number of simulated cases that copus loses, and its median, worst and best
    gain."""
    cells = [o for o in outcomes if o["part"] == "map"]
    rows = []
    for axis in ("alpha", "calibration", "network", "pause", "job"):
        for value in dict.fromkeys(o[axis] for o in cells):
            chosen = [o for o in cells if o[axis] == value]
            row = [f"{axis} {value}", str(len(chosen))]
            for target, over in ((-1, "best static"), (0, "best static"), (-1, "copus-paper")):
                gains = sorted(gain(o["targets"][target], over) for o in chosen)
                lost = sum(g < 0 for g in gains)
                row.append(f"{lost} lost; {percent(gains[0])}, {percent(statistics.median(gains))}, {percent(gains[-1])}")
            rows.append(row)
    header = ["", "cells", "end, over best static: worst, middle, best", "loss 4, over best static",
              "end, over copus-paper"]
    return table(header, rows)


def list_of(outcomes, part):
    rows = []
    for o in (o for o in outcomes if o["part"] == part):
        what = [o["job"], o["law"], o["worth"], f"c = {o['calibration']}", f"links {o['network']}",
                f"{o['tokens'] / 1e9:,.0f} B tokens"]
        end, run = o["targets"][-1], o["runs"]["copus"]
        rows.append([", ".join(what), both_gains(o, 0), both_gains(o, -1), f"{end['loss']:.3f}",
                     f"{end['best_static']['seconds'] / 3600:,.1f} h", f"`{end['best_static']['configuration']}`",
                     str(run["relayouts"]), f"`{run['last']}`"])
    return table(["", "at a loss of 4", "at the end", "its loss", "best static", "which is",
                  "re-layouts", "copus ends in"], rows)


def told_table(outcomes):
    found = {(o["job"], o["calibration"], o["alpha"]): o for o in outcomes if o["part"] == "told"}
    rows = [[f"{job}, c = {c}"] + [both_gains(found[job, c, alpha], -1) for alpha in ALPHAS]
            for job, c in itertools.product(JOBS, [0.5, 2, 8]) if (job, c, ALPHAS[-1]) in found]
    return table(["", *(f"alpha {alpha}" for alpha in ALPHAS)], rows)


def draws_table(outcomes):
    """For each job, network and pause: the gains at the end over several draws of layouts and noise."""
    rows = []
    for job, network, pause in itertools.product(JOBS, NETWORKS, PAUSES):
        found = [o for o in outcomes if (o["part"], o["job"], o["network"], o["pause"]) == ("draws", job, network, pause)]
        cells = [", ".join(percent(gain(o["targets"][-1], over)) for o in found) for over in ("best static", "copus-paper")]
        rows.append([f"{job}, links {network}, pause {pause}", *cells])
    return table(["", "over best static, draw by draw", "over copus-paper"], rows)


def write_tables(outcomes):
    text = ("# Where adapting gains and where it loses\n\nWritten by map.py from map.json. Simulated, by published laws: "
            "nothing here was measured. Gains of `copus` in percent of the time of the best static run of hindsight / "
            "of `copus-paper`, to the same loss; **bold**: it loses.\n")
    parts = {o["part"] for o in outcomes}
    if "map" in parts:
        text += "\n## The map, in short\n\n" + summary_table(outcomes) + "\n## The map, to the end\n"
        text += map_tables(outcomes)
    for part, title in (("laws", "Other laws"), ("wide", "The wide space"), ("large", "Jobs that only this reaches")):
        if part in parts:
            text += f"\n## {title}\n\n" + list_of(outcomes, part)
    if "draws" in parts:
        text += "\n## Other draws, at c = 2 and alpha 0\n\n" + draws_table(outcomes)
    if "told" in parts:
        text += "\n## Policies that are told alpha and c\n\n" + told_table(outcomes)
    TABLES.write_text(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--program", default="build/copus")
    parser.add_argument("--part", nargs="+", choices=["map", "laws", "wide", "large", "draws", "told"], default=["map"])
    options = parser.parse_args()
    outcomes = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    for wanted in (cell for part in options.part for cell in cells_of(part)):
        if any(all(outcome[key] == value for key, value in wanted.items()) for outcome in outcomes):
            continue
        begin = time.monotonic()
        result = subprocess.run(command_of(wanted, options.program), capture_output=True, text=True, check=False)
        if result.returncode != 0:
            sys.exit(f"{wanted}: {result.stderr}")
        outcomes.append(outcome_of(wanted, json.loads(result.stdout), time.monotonic() - begin))
        write(outcomes)
    write_tables(outcomes)
    print(f"{len(outcomes)} simulations, {sum(o['seconds_to_simulate'] for o in outcomes):.0f} s: {TABLES}")


if __name__ == "__main__":
    main()
