#!/usr/bin/env python3
"""Tables of comparisons: those of docs/evaluation.md, from results.json; the effect of an arm's steps; and the primary
comparison that README.md in this folder declares.

    bench/evaluation/table.py arms RESULTS ARM   every arm: loss at the end, and time to the final target, beside ARM's
    bench/evaluation/table.py gains RESULTS...   what adapting saves over the fastest baseline and the fastest rule
    bench/evaluation/table.py steps DIRECTORY    loss at the end, and beside constant batches in as many steps
    bench/evaluation/table.py times DIRECTORY STATIC
                                                 every arm's time to STATIC's loss at its end, seed by seed, as JSON
    bench/evaluation/table.py primary TIMES ARM STATIC [OTHER...]
                                                 these times: ARM's beside STATIC's and OTHER's

A saving is 1 - time / time of the other arm, with geometric means over the seeds. Baselines of the paper are fixed
batches and CBS in either layout (arXiv 2604.26687). Rivals with the wide space are compared only with wide arms.

A run that ends without reaching a target is censored: its time is longer than the run, but unknown. `gains` counts it
as the time of the run, so a rival's saving is understated, and marks Copus' own misses. `arms` and `primary` use the
median of the ratios of times, in which a censored time is longer than every known one. Two censored times count as
equal. The interval is that of the sign test, and may be unbounded: `inf`.

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


def is_censored(target: dict) -> bool:
    """Returns whether runs of an arm ended without reaching a target, and nothing else is wrong with its runs."""
    reasons = (target["refusal"] or "").split("; ")
    return all(reason.endswith("never reached it") for reason in reasons)


def seconds_of_runs(results: dict) -> float | None:
    """Returns the seconds that all runs of an experiment take; None if their length is in steps or tokens."""
    limits = [setting for setting in results["set"] if setting.startswith("train.max_seconds=")]
    return float(limits[-1].split("=")[1]) if limits else None


def seconds(result: dict, length: float | None) -> list:
    """Returns the mean seconds to each target and the number of runs that missed the target (censored), which count as
    `length` seconds. None where the seconds are unknown."""
    times = []
    for target in result["targets"]:
        runs = [run["seconds"] for run in target["runs"]]
        if target["refusal"] is None:
            times.append((target["seconds"], 0))
        elif is_censored(target) and length is not None:
            known = [length if time is None else time for time in runs]
            times.append((statistics.geometric_mean(known), runs.count(None)))
        else:
            times.append(None)
    return times


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


def log_ratio(mine: float | None, other: float | None) -> float:
    """Returns the logarithm of a ratio of times; infinite if one of them is censored (None), 0 if both are."""
    if mine is None or other is None:
        return 0.0 if mine is other else math.inf if mine is None else -math.inf
    return math.log(mine / other)


def median_interval(values: list[float]) -> tuple:
    """Returns the median and its interval of at least 95 % by the sign test; infinite ends where there are too few."""
    ordered, count = sorted(values), len(values)
    middle = (count - 1) // 2, count // 2
    median = ordered[middle[0]] if ordered[middle[0]] == ordered[middle[1]] else sum(ordered[i] for i in middle) / 2
    outside, kept = 0.0, 0  # how many values the interval leaves out at each end, and one
    while (outside := outside + math.comb(count, kept) / 2**count) <= 0.025:
        kept += 1
    return (median, ordered[kept - 1], ordered[-kept]) if kept else (median, -math.inf, math.inf)


def signed_rank_p(values: list[float]) -> float:
    """Returns the two-sided p-value of Wilcoxon's signed-rank test, exact also with ties. Zeros are left out, and
    infinite values have the largest ranks."""
    sizes = sorted(abs(value) for value in values if value != 0)
    if not sizes:
        return 1.0
    # Twice the mean rank of equal sizes, so that all ranks are whole numbers.
    rank = {size: sizes.index(size) + 1 + len(sizes) - sizes[::-1].index(size) for size in sizes}
    sums = {0: 1}  # the number of signs with this sum of positive ranks
    for size in sizes:
        grown = dict(sums)
        for total, ways in sums.items():
            grown[total + rank[size]] = grown.get(total + rank[size], 0) + ways
        sums = grown
    whole = sum(rank[size] for size in sizes)
    found = sum(rank[value] for value in values if value > 0)
    extreme = max(found, whole - found)
    return min(1.0, 2 * sum(ways for total, ways in sums.items() if total >= extreme) / 2 ** len(sizes))


def holm(values: list[float]) -> list[float]:
    """Returns p-values adjusted by Holm's method, in the same order."""
    adjusted, largest = [0.0] * len(values), 0.0
    for rank, i in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        largest = max(largest, min(1.0, (len(values) - rank) * values[i]))
        adjusted[i] = largest
    return adjusted


def median_text(logarithms: list[float]) -> str:
    return "{:.3f} ({:.3f} to {:.3f})".format(*map(math.exp, median_interval(logarithms)))


def interval(mine: dict, other: dict) -> str:
    """Returns the ratio of the times to a target with its 95 % interval, by Student's t distribution over the paired
    seeds. If a run missed the target, returns the median of the ratios instead."""
    if mine is other:
        return ""
    if not (is_censored(mine) or mine["refusal"] is None) or not (is_censored(other) or other["refusal"] is None):
        return "not known"
    theirs = {run["seed"]: run["seconds"] for run in other["runs"]}
    logarithms = [log_ratio(run["seconds"], theirs[run["seed"]]) for run in mine["runs"]]
    missed = [run["seconds"] for run in mine["runs"]].count(None)
    if mine["refusal"] is None and other["refusal"] is None:
        mean, width = mean_and_width(logarithms)
        return f"{math.exp(mean):.3f} ({math.exp(mean - width):.3f} to {math.exp(mean + width):.3f})"
    return f"median {median_text(logarithms)}" + (f"; missed by {missed} of {len(logarithms)}" if missed else "")


def loss_difference(mine: dict, other: dict) -> str:
    """Returns the difference of the losses at the end with its 95 % interval; empty if a loss is not known."""
    theirs = {run["seed"]: run["held_out_loss"] for run in other["runs"]}
    pairs = [(run["held_out_loss"], theirs[run["seed"]]) for run in mine["runs"]]
    if mine is other or any(None in pair for pair in pairs):
        return ""
    mean, width = mean_and_width([one - two for one, two in pairs])
    return f"{mean:+.4f} ({mean - width:+.4f} to {mean + width:+.4f})"


def print_arms(path: pathlib.Path, against: str) -> None:
    results = json.loads(path.read_text())
    final = results["targets"][-1]
    other = next((result for result in results["results"] if result["name"] == against), None)
    if other is None:
        sys.exit(f"{path} has no arm {against}")
    print(f"| arm | loss at the end | minus {against}'s (95 %) | time to {final} / {against}'s (95 %) "
          f"| tokens to {final} |")
    print("|---|---|---|---|---|")
    for result in sorted(results["results"], key=lambda one: one["final_loss"]["mean_held_out_loss"] or 9):
        loss, target = result["final_loss"]["mean_held_out_loss"], result["targets"][-1]
        tokens = "" if target["tokens"] is None else f"{target['tokens'] / 1000:.0f} k"
        cells = [result["name"], "" if loss is None else f"{loss:.4f}",
                 loss_difference(result["final_loss"], other["final_loss"]), interval(target, other["targets"][-1]),
                 tokens]
        print(f"| {' | '.join(cells)} |")


def mean_and_peak(mine: list, others: list[list]) -> str:
    """Returns the mean and the largest saving of an arm compared with the fastest of the other arms. Both are over the
    targets for which seconds() gives a time."""
    gains, missed, unknown = [], 0, 0
    for at, time in enumerate(mine):
        known = [other[at][0] for other in others if other[at] is not None]
        if time is None or not known:
            unknown += 1
            continue
        gains.append(1 - time[0] / min(known))
        missed += time[1]
    text = f"{sum(gains) / len(gains):+.1%}, {max(gains):+.1%}" if gains else "none"
    text += f"; at most, runs missed: {missed}" if missed else ""
    return text + (f"; {unknown} not known" if unknown else "")


def print_gains(paths: list[pathlib.Path]) -> None:
    print("| experiment | arm | over the paper's baselines: mean, peak | over every other rule: mean, peak |")
    print("|---|---|---|---|")
    for path in paths:
        results = json.loads(path.read_text())
        length = seconds_of_runs(results)
        arms = {result["name"]: seconds(result, length) for result in results["results"]}
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


def seconds_to(loss: float, run: pathlib.Path) -> float | None:
    """Returns the seconds at which a run's held-out loss falls to `loss`, as `copus compare` does; None: never."""
    before = None
    for line in (run / "run.jsonl").read_text().splitlines():
        record = json.loads(line)
        if record["held_out_loss"] is None:
            continue
        here = (record["elapsed_seconds"], record["held_out_loss"])
        if here[1] <= loss:
            if before is None:
                sys.exit(f"{run} had reached {loss} before its first evaluation: evaluate more often")
            return before[0] + (here[0] - before[0]) * (before[1] - loss) / (before[1] - here[1])
        before = here
    return None


def times_to_loss_of(directory: pathlib.Path, static: str) -> dict:
    """Returns the loss that `static` has at its end, seed by seed, and each arm's seconds to this loss."""
    results = json.loads((directory / "results.json").read_text())
    ran = {result["name"]: result["arm"] for result in results["results"]}
    if ran.get(static) is None:
        sys.exit(f"{directory} has no arm {static}")

    def of_seed(name: str, seed: int) -> pathlib.Path:
        return directory / "runs" / ran[name] / f"seed-{seed}"

    ends = {seed: json.loads((of_seed(static, seed) / "summary.json").read_text()) for seed in results["seeds"]}
    seconds = {name: [seconds_to(end["held_out_loss"], of_seed(name, seed)) for seed, end in ends.items()]
               for name, arm in ran.items() if arm and name != static}
    seconds[static] = [end["train_seconds"] for end in ends.values()]
    losses = [end["held_out_loss"] for end in ends.values()]
    return {"static": static, "seeds": list(ends), "losses": losses, "seconds": seconds}


def print_primary(times: dict, arm: str, static: str, others: list[str]) -> None:
    """Prints the primary comparison, `arm` over `static`, and `arm` over each other arm, with Holm's adjustment of
    these secondary comparisons. `times`: the result of `times_to_loss_of`."""
    seconds = times["seconds"]
    if missing := [name for name in (arm, static, *others) if name not in seconds]:
        sys.exit(f"there are no times of an arm {missing[0]}")
    if static != times["static"]:
        sys.exit(f"these are times to the loss of {times['static']}")
    if len(others) > 3:
        sys.exit("there are at most three secondary comparisons")
    logarithms = {name: [log_ratio(mine, other) for mine, other in zip(seconds[arm], seconds[name])]
                  for name in (static, *others)}
    adjusted = holm([signed_rank_p(logarithms[name]) for name in others])
    print("| comparison | median of the ratios (95 %) | missed | p |")
    print("|---|---|---|---|")
    for name, p in zip((static, *others), (signed_rank_p(logarithms[static]), *adjusted)):
        kind = "primary" if name == static else "secondary, Holm"
        missed = f"{seconds[arm].count(None)} and {seconds[name].count(None)} of {len(times['seeds'])}"
        print(f"| {arm} / {name}, {kind} | {median_text(logarithms[name])} | {missed} | {p:.4f} |")


def main() -> None:
    least = {"arms": 4, "gains": 3, "steps": 3, "times": 4, "primary": 5}
    if len(sys.argv) < 2 or len(sys.argv) < least.get(sys.argv[1], len(sys.argv) + 1):
        sys.exit(__doc__)
    if sys.argv[1] == "arms":
        print_arms(pathlib.Path(sys.argv[2]), sys.argv[3])
    elif sys.argv[1] == "steps":
        print_steps(pathlib.Path(sys.argv[2]))
    elif sys.argv[1] == "primary":
        print_primary(json.loads(pathlib.Path(sys.argv[2]).read_text()), sys.argv[3], sys.argv[4], sys.argv[5:])
    elif sys.argv[1] == "times":
        print(json.dumps(times_to_loss_of(pathlib.Path(sys.argv[2]), sys.argv[3]), indent=1))
    else:
        print_gains([pathlib.Path(path) for path in sys.argv[2:]])


if __name__ == "__main__":
    main()
