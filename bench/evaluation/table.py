#!/usr/bin/env python3
"""Tables of comparisons: those of docs/evaluation.md, from results.json, and the effect of an arm's steps.

    bench/evaluation/table.py arms RESULTS ARM   every arm: loss at the end, and time to the final target beside ARM's
    bench/evaluation/table.py gains RESULTS...   what adapting saves over the fastest baseline and the fastest rule
    bench/evaluation/table.py steps DIRECTORY    loss at the end, and beside constant batches in as many steps

A saving is 1 - time / time of the other arm, with geometric means over the seeds. An arm that misses a target with any
seed has no time at this target. Baselines of the paper are fixed batches and CBS in either layout (arXiv 2604.26687).
Rivals with the wide space are compared only with wide arms.

"As many steps": the losses of a seed's constant-... arms, interpolated linearly in the logarithm of their steps.
"""

import json
import math
import pathlib
import statistics
import sys

ADAPTING = ("copus", "copus-wide")


def is_baseline_of_the_paper(name: str) -> bool:
    return (name.startswith("static-") and not name.endswith("-wide")) or name.startswith("cbs-")


def seconds(result: dict) -> list:
    """Returns the mean seconds to each target; None where it is not reported."""
    return [target["seconds"] for target in result["targets"]]


def student_quantile(degrees: int) -> float:
    """Returns the 97.5 % quantile of Student's distribution."""
    def two_sided(t: float) -> float:
        # With t = sqrt(degrees) tan(angle), the density is proportional to cos(angle)^(degrees - 1). Simpson's rule.
        steps, end = 1000, math.atan(t / math.sqrt(degrees))
        weights = [1 if i in (0, steps) else 4 if i % 2 else 2 for i in range(steps + 1)]
        area = sum(w * math.cos(end * i / steps) ** (degrees - 1) for i, w in enumerate(weights)) * end / steps / 3
        return 2 * area * math.gamma((degrees + 1) / 2) / math.gamma(degrees / 2) / math.sqrt(math.pi)

    low, high = 1.0, 13.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if two_sided(middle) < 0.95 else (low, middle)
    return high


def mean_and_width(values: list) -> tuple:
    """Returns the mean of differences of pairs and half of its 95 % interval, by Student's distribution."""
    width = student_quantile(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return statistics.mean(values), width


def interval(mine: dict, other: dict) -> str:
    """Returns the ratio of the times to a target, with its 95 % interval by Student's distribution of the pairs."""
    if mine["refusal"] is not None:
        return "missed"
    if other["refusal"] is not None or mine is other:
        return ""
    theirs = {run["seed"]: run["seconds"] for run in other["runs"]}
    logarithms = [math.log(run["seconds"] / theirs[run["seed"]]) for run in mine["runs"]]
    mean, width = mean_and_width(logarithms)
    return f"{math.exp(mean):.3f} ({math.exp(mean - width):.3f} to {math.exp(mean + width):.3f})"


def print_arms(path: pathlib.Path, against: str) -> None:
    results = json.loads(path.read_text())
    final = results["targets"][-1]
    other = next((result for result in results["results"] if result["name"] == against), None)
    if other is None:
        sys.exit(f"{path} has no arm {against}")
    print(f"| arm | loss at the end | time to {final} / that of {against} (95 %) | tokens to {final} |")
    print("|---|---|---|---|")
    for result in sorted(results["results"], key=lambda one: one["final_loss"]["mean_held_out_loss"] or 9):
        loss, target = result["final_loss"]["mean_held_out_loss"], result["targets"][-1]
        tokens = "" if target["tokens"] is None else f"{target['tokens'] / 1000:.0f} k"
        cells = [result["name"], "" if loss is None else f"{loss:.4f}", interval(target, other["targets"][-1]), tokens]
        print(f"| {' | '.join(cells)} |")


def mean_and_peak(mine: list, others: list[list]) -> str:
    """Returns the mean and the largest saving of an arm compared with the fastest of the other arms, over the targets
    that this arm and at least one other have reached."""
    gains, missed, alone = [], 0, 0
    for at, time in enumerate(mine):
        reached = [other[at] for other in others if other[at] is not None]
        if time is None:
            missed += 1
        elif not reached:
            alone += 1
        else:
            gains.append(1 - time / min(reached))
    text = f"{sum(gains) / len(gains):+.1%}, {max(gains):+.1%}" if gains else "none"
    return text + (f"; missed {missed}" if missed else "") + (f"; reached {alone} that no other did" if alone else "")


def print_gains(paths: list[pathlib.Path]) -> None:
    print("| experiment | arm | over the paper's baselines: mean, peak | over every other rule: mean, peak |")
    print("|---|---|---|---|")
    for path in paths:
        results = json.loads(path.read_text())
        arms = {result["name"]: seconds(result) for result in results["results"]}
        rivals = [name for name in arms if not name.startswith("copus") or name == "copus-paper"]
        for name in ADAPTING + ("copus-paper",):
            if name not in arms:
                continue
            same_space = [r for r in rivals if r != name and (name.endswith("-wide") or not r.endswith("-wide"))]
            baselines = [r for r in same_space if is_baseline_of_the_paper(r)]
            cells = [mean_and_peak(arms[name], [arms[r] for r in others]) for others in (baselines, same_space)]
            print(f"| {path.stem} | {name} | {cells[0]} | {cells[1]} |")


def loss_in_steps(constants: list, steps: int) -> float:
    """Returns the loss of constant batches in this many steps, from pairs of (steps, loss) below and above."""
    points = sorted(constants)
    for (fewer, first), (more, second) in zip(points, points[1:]):
        if fewer <= steps <= more:
            return first + (second - first) * math.log(steps / fewer) / math.log(more / fewer)
    sys.exit(f"{steps} steps are not in between those of constant batches, {points[0][0]} to {points[-1][0]}")


def print_steps(directory: pathlib.Path) -> None:
    results = json.loads((directory / "results.json").read_text())
    ends = {}  # steps and loss of each arm, by seed
    for result in results["results"]:
        if result["final_loss"]["refusal"] is not None:
            print(f"{result['name']}: {result['final_loss']['refusal']}", file=sys.stderr)
            continue
        ends[result["name"]] = by_seed = {}
        for run in result["final_loss"]["runs"]:
            summary = directory / "runs" / result["arm"] / f"seed-{run['seed']}" / "summary.json"
            by_seed[run["seed"]] = (json.loads(summary.read_text())["steps"], run["held_out_loss"])
    print("| arm | steps | loss at the end | loss less that of constant batches in as many steps (95 %) |")
    print("|---|---|---|---|")
    for name, by_seed in sorted(ends.items(), key=lambda arm: statistics.mean(steps for steps, _ in arm[1].values())):
        beside = ""
        if not name.startswith("constant-"):
            constants = [runs for other, runs in ends.items() if other.startswith("constant-")]
            differences = [
                loss - loss_in_steps([runs[seed] for runs in constants], steps)
                for seed, (steps, loss) in by_seed.items()
            ]
            mean, width = mean_and_width(differences)
            beside = f"{mean:+.4f} ({mean - width:+.4f} to {mean + width:+.4f})"
        steps, losses = zip(*by_seed.values())
        print(f"| {name} | {statistics.mean(steps):.0f} | {statistics.mean(losses):.4f} | {beside} |")


def main() -> None:
    least = {"arms": 4, "gains": 3, "steps": 3}
    if len(sys.argv) < 2 or len(sys.argv) < least.get(sys.argv[1], len(sys.argv) + 1):
        sys.exit(__doc__)
    if sys.argv[1] == "arms":
        print_arms(pathlib.Path(sys.argv[2]), sys.argv[3])
    elif sys.argv[1] == "steps":
        print_steps(pathlib.Path(sys.argv[2]))
    else:
        print_gains([pathlib.Path(path) for path in sys.argv[2:]])


if __name__ == "__main__":
    main()
