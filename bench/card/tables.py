"""The tables of the experiment of README.md, from its rows."""

import collections
import dataclasses
import math
import statistics

from cases import EXPONENTS, MULTIPLES, SCREENING_SEED, SEEDS, Scale, branches, chosen, fixed_batches, judged_runs
from cases import runs_of, screened, screening_runs
from rows import by_case, differing_trunk, failure_text, finished
from table import log_ratio, mean_and_width, median_interval

FIT_EXPONENT = 0.5  # of B / B_ref in the rate of the branches to which B_c is fitted
NOT_INFERIOR = 0.01  # nats


def table(header: list[str], rows: list[list]) -> list[str]:
    return [f"| {' | '.join(map(str, cells))} |" for cells in (header, ["---"] * len(header), *rows)]


def mega(tokens: float) -> str:
    return f"{tokens / 1e6:.3g} M"


def speeds(rows: list[dict]) -> list[str]:
    cells = [[row["model"], row["copies"], f"{row['tokens_per_second']:,}",
              ", ".join(f"{one:,}" for one in row["each"])] for row in rows if row["stage"] == "G0"]
    return ["**G0: tokens/s of runs at once**", "", *table(["model", "runs", "together", "each"], cells)]


def trunk_table(scale: Scale, rows: list[dict]) -> list[str]:
    cells = []
    for trained in sorted(by_case(rows, "trunk").values(), key=lambda calls: (calls[0]["seed"], calls[0]["point"])):
        row = trained[0]
        noise = ["?" if row[key] is None else f"{row[key]:.0f}"
                 for key in ("noise_scale", "noise_scale_low", "noise_scale_high")]
        losses = {one["loss"] for one in trained}
        same = "" if len(trained) == 1 else ", the same loss" if len(losses) == 1 else ", DIFFERENT losses"
        cells.append([row["seed"], mega(row["point"] * scale.sequence_length), row["epochs"][1], f"{row['loss']:.4f}",
                      f"{noise[0]} ({noise[1]} to {noise[2]})", f"{len(trained)}{same}"])
    header = ["seed", "tokens", "epochs", "held-out loss", "noise scale, samples (95 %)", "trained in calls"]
    return ["**G1: trunks**", "", *table(header, cells)]


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A worth of samples, or B_c. `low` and `high` are the numbers of losses outside of the ladder that make the true
    value lower or higher than `value`."""

    value: float
    low: int = 0
    high: int = 0

    def text(self, digits: int, divisor: float = 1) -> str:
        if self.low and self.high:
            return "unknown"
        number = f"{self.value / divisor:.{digits}f}"
        return f"at most {number}" if self.low else f"at least {number}" if self.high else number


def mean_of(estimates: list[Estimate]) -> Estimate:
    return Estimate(statistics.geometric_mean(one.value for one in estimates), sum(one.low for one in estimates),
                    sum(one.high for one in estimates))


def worth_of(ladder: dict[int, float], row: dict) -> Estimate:
    """Returns the samples of the ladder that reach a branch's loss, linear in their logarithm between rungs, over the
    branch's samples. A loss outside of the ladder counts as the rung at that end, and so does a branch that
    diverged."""
    rungs, loss = sorted(ladder), math.inf if row["loss"] is None else row["loss"]
    for fewer, more in zip(rungs, rungs[1:]):
        if ladder[fewer] >= loss >= ladder[more] and ladder[fewer] > ladder[more]:
            place = (ladder[fewer] - loss) / (ladder[fewer] - ladder[more])
            return Estimate(fewer * (more / fewer) ** place / row["samples"])
    if loss > ladder[rungs[0]]:
        return Estimate(rungs[0] / row["samples"], low=1)
    return Estimate(rungs[-1] / row["samples"], high=1)


def worths(scale: Scale, rows: list[dict], point: int) -> dict[tuple, list[Estimate]]:
    """Returns the worths by (batch, exponent), in the order of the seeds. Empty if a branch of a seed has no result, or
    a rung of its ladder diverged."""
    found = collections.defaultdict(list)
    for seed in scale.branch_seeds:
        of_seed = [row for row in rows if row["stage"] == "G1" and row["seed"] == seed and row["point"] == point]
        ladder = {row["samples"]: row["loss"] for row in of_seed if row["batch"] == scale.reference}
        if len(of_seed) < len(branches(scale, seed, point)) or None in ladder.values():
            return {}
        for row in of_seed:
            if row["batch"] != scale.reference:
                found[row["batch"], row["exponent"]].append(worth_of(ladder, row))
    return found


def critical_batch(reference: int, worth: dict[int, Estimate]) -> Estimate:
    """Returns the B_c of SE(B) = (B_c + B_ref) / (B_c + B) with the least squares of ln SE. SE grows with B_c in
    batches above B_ref and falls in smaller ones, so B_c inherits the bounds in this direction."""
    grid = [0.1 * 1.01**i for i in range(1400)]
    best = min(grid, key=lambda b_c: sum((math.log((b_c + reference) / (b_c + batch)) - math.log(one.value)) ** 2
                                         for batch, one in worth.items()))
    return Estimate(best, sum(one.low if batch > reference else one.high for batch, one in worth.items()),
                    sum(one.high if batch > reference else one.low for batch, one in worth.items()))


def branch_tables(scale: Scale, rows: list[dict]) -> list[str]:
    cells, critical = [], []
    batches = [int(multiple * scale.reference) for multiple in MULTIPLES]
    for point in scale.points:
        found = worths(scale, rows, point)
        if not found:
            continue
        tokens = mega(point * scale.sequence_length)
        for batch in batches:
            of_slopes = [mean_of(found[batch, exponent]) for exponent in EXPONENTS]
            cells.append([tokens, f"{batch / scale.reference:g}", *(one.text(2) for one in of_slopes),
                          f"{sum(one.low for one in of_slopes)} and {sum(one.high for one in of_slopes)}"])
        by_seed = [critical_batch(scale.reference, {batch: found[batch, FIT_EXPONENT][place] for batch in batches})
                   for place in range(len(scale.branch_seeds))]
        b_c = critical_batch(scale.reference, {batch: mean_of(found[batch, FIT_EXPONENT]) for batch in batches})
        line = [tokens, ", ".join(one.text(0) for one in by_seed), b_c.text(0), "unknown", "unknown"]
        noise = [calls[0]["noise_scale"] for calls in by_case(rows, "trunk").values()
                 if calls[0]["point"] == point and calls[0]["seed"] in scale.branch_seeds]
        if len(noise) == len(scale.branch_seeds) and None not in noise:
            phi = statistics.geometric_mean(noise)
            line[3:] = [f"{phi:.0f}", b_c.text(2, phi)]
        critical.append(line)
    header = ["tokens", "B / B_ref", *(f"SE at slope {exponent:g}" for exponent in EXPONENTS),
              "losses above and below the ladder"]
    return ["**G1: worth of a sample**, mean over seeds", "", *table(header, cells), "",
            f"**G1: critical batch**, at slope {FIT_EXPONENT:g}", "",
            *table(["tokens", "B_c of each seed, samples", "B_c", "noise scale", "B_c / noise scale"], critical)]


def screening_table(scale: Scale, rows: list[dict]) -> list[str]:
    arms = chosen(scale, rows) or {}
    picked = dict.fromkeys(arms.values())
    cells = [[arm, f"{rate:g}", "diverged" if math.isinf(loss) else f"{loss:.4f}",
              "chosen" if (arm, rate) in picked else ""]
             for arm in (*fixed_batches(scale), "copus") for rate, loss in sorted(screened(scale, rows, arm).items())]
    lines = ["**G2: screening**, seed " + str(SCREENING_SEED), "",
             *table(["arm", "rate / base", "loss at the end", ""], cells)]
    for arm, rate in picked:
        rates = screened(scale, rows, arm)
        if rate in (min(rates), max(rates)):
            lines.append(f"The rate of {arm} is at an end of its grid.")
    if arms and arms["static"][0] in (fixed_batches(scale)[0], fixed_batches(scale)[-1]):
        lines.append(f"The batch of {arms['static'][0]} is at an end of its grid.")
    return lines


def seconds_to(row: dict, loss: float) -> float | None:
    """Returns the modelled seconds at which a run's held-out loss falls to `loss`, linear between evaluations."""
    for before, after in zip(row["evaluations"], row["evaluations"][1:]):
        if before[1] > loss >= after[1]:
            return before[0] + (after[0] - before[0]) * (before[1] - loss) / (before[1] - after[1])
    return None


def verdict(name: str, differences: list[float]) -> str:
    """Returns what the differences of the losses at the end decide, one for each seed; infinite where one of the runs
    diverged, and not a number where both did."""
    if len(differences) < len(SEEDS):
        return f"no verdict before all {len(SEEDS)} seeds"
    if not all(math.isfinite(one) for one in differences):
        return f"{name} is not shown to win or to be not inferior: a run diverged, so there is no interval"
    mean, width = mean_and_width(differences)
    upper = mean + width
    return f"{name} " + ("wins" if upper < 0 else "is not inferior" if upper < NOT_INFERIOR else
                         "is not shown to be not inferior")


def judged_table(scale: Scale, rows: list[dict]) -> list[str]:
    arms = chosen(scale, rows)
    if arms is None:
        return ["**G2: comparison**: not before all screening runs have a result"]
    runs = {(row["arm"], row["rate"], row["seed"]): row for row in runs_of(scale, rows)}
    by_name = {name: {seed: runs[*arm, seed] for seed in SEEDS if (*arm, seed) in runs} for name, arm in arms.items()}
    cells, verdicts = [], []
    for name, other in (("copus", "static"), ("copus", "law"), ("law", "static")):
        seeds = [seed for seed in SEEDS if all(seed in by_name[one] for one in (name, other, "static"))]
        pairs = [(by_name[name][seed], by_name[other][seed]) for seed in seeds]
        losses = [[math.inf if row["loss"] is None else row["loss"] for row in pair] for pair in pairs]
        differences = [mine - its for mine, its in losses]
        diverged = [sum(math.isinf(pair[place]) for pair in losses) for place in (0, 1)]
        line = [f"{name} / {other}", f"{sum(one < 0 for one in differences)} of {len(seeds)}",
                f"{diverged[0]} and {diverged[1]}", "", "", ""]
        if len(seeds) == len(SEEDS) and not any(diverged):
            mean, width = mean_and_width(differences)
            line[3] = f"{mean:+.4f} ({mean - width:+.4f} to {mean + width:+.4f})"
            if all(by_name["static"][seed]["loss"] is not None for seed in seeds):
                targets = [by_name["static"][seed]["loss"] for seed in seeds]
                times = [tuple(seconds_to(row, target) for row in pair) for pair, target in zip(pairs, targets)]
                line[4] = f"{math.exp(median_interval([log_ratio(*pair) for pair in times])[0]):.3f}"
                line[5] = f"{sum(mine is None for mine, _ in times)} and {sum(its is None for _, its in times)}"
        cells.append(line)
        if (name, other) == ("copus", "static"):
            verdicts.append(f"Primary comparison: {verdict('copus', differences)}.")
    return ["**G2: comparison**", "", *table(["arms", "pairs won", "diverged", "loss at the end, difference (95 %)",
                                             "time to static's loss, median ratio", "missed"], cells), "", *verdicts]


def report(scale: Scale, rows: list[dict]) -> str:
    done = finished(rows)
    wanted = [branch["case"] for seed in scale.branch_seeds for point in scale.points
              for branch in branches(scale, seed, point)]
    runs = [run["case"] for run in (*screening_runs(scale, rows), *judged_runs(scale, rows))]
    lists = {"diverged": [row["case"] for row in rows if row["stage"] in ("G1", "G2") and row["loss"] is None],
             "failed, no result": [failure_text(calls[-1]) for case, calls in by_case(rows, "failed").items()
                                   if case not in done],
             "interrupted, no result": list(dict.fromkeys(row["case"] for row in rows if row["stage"] == "interrupted"
                                                          and row["case"] not in done))}
    parts = [speeds(rows), trunk_table(scale, rows), branch_tables(scale, rows), screening_table(scale, rows),
             judged_table(scale, rows),
             [f"G1: {sum(case in done for case in wanted)} of {len(wanted)} branches; "
              f"G2: {sum(case in done for case in runs)} of {len(runs)} runs known so far",
              *(f"{name}: {', '.join(found) or 'none'}" for name, found in lists.items())]]
    if message := differing_trunk(rows):
        parts.append([message])
    return "\n\n".join("\n".join(part) for part in parts)
