"""The tables of the experiment of README.md, from its rows."""

import collections
import math
import statistics

from cases import EXPONENTS, MULTIPLES, SCREENING_SEED, SEEDS, Scale, branches, chosen, fixed_batches, judged_runs
from cases import screened, screening_runs
from table import log_ratio, mean_and_width, median_interval


def table(header: list[str], rows: list[list]) -> list[str]:
    return [f"| {' | '.join(map(str, cells))} |" for cells in (header, ["---"] * len(header), *rows)]


def mega(tokens: float) -> str:
    return f"{tokens / 1e6:.3g} M"


def speeds(rows: list[dict]) -> list[str]:
    cells = [[row["model"], row["copies"], f"{row['tokens_per_second']:,}",
              ", ".join(f"{one:,}" for one in row["each"])] for row in rows if row["stage"] == "G0"]
    return ["**G0: tokens/s of runs at once**", "", *table(["model", "runs", "together", "each"], cells)]


def trunks(scale: Scale, rows: list[dict]) -> list[str]:
    by_case = collections.defaultdict(list)
    for row in rows:
        if row["stage"] == "trunk":
            by_case[row["case"]].append(row)
    cells = []
    for _, trained in sorted(by_case.items(), key=lambda one: (one[1][0]["seed"], one[1][0]["point"])):
        row = trained[0]
        noise = ["?" if row[key] is None else f"{row[key]:.0f}"
                 for key in ("noise_scale", "noise_scale_low", "noise_scale_high")]
        losses = {one["loss"] for one in trained}
        same = "" if len(trained) == 1 else ", the same loss" if len(losses) == 1 else ", DIFFERENT losses"
        cells.append([row["seed"], mega(row["point"] * scale.sequence_length), row["epochs"][1], f"{row['loss']:.4f}",
                      f"{noise[0]} ({noise[1]} to {noise[2]})", f"{len(trained)}{same}"])
    header = ["seed", "tokens", "epochs", "held-out loss", "noise scale, samples (95 %)", "trained in calls"]
    return ["**G1: trunks**", "", *table(header, cells)]


def samples_at(ladder: dict[int, float], loss: float) -> float | None:
    """Returns the samples in the reference batch that reach a loss, linear in their logarithm between rungs; None
    outside of the ladder."""
    rungs = sorted(ladder)
    for fewer, more in zip(rungs, rungs[1:]):
        if ladder[fewer] >= loss >= ladder[more] and ladder[fewer] > ladder[more]:
            place = (ladder[fewer] - loss) / (ladder[fewer] - ladder[more])
            return fewer * (more / fewer) ** place
    return None


def worths(scale: Scale, rows: list[dict], point: int) -> dict[tuple, list]:
    """Returns ln SE by (batch, exponent), one for each seed; None if the loss is outside of the ladder."""
    found = collections.defaultdict(list)
    for seed in scale.branch_seeds:
        of_seed = [row for row in rows if row["stage"] == "G1" and row["seed"] == seed and row["point"] == point]
        if len(of_seed) < len(branches(scale, seed, point)):
            continue
        ladder = {row["samples"]: row["loss"] for row in of_seed
                  if row["batch"] == scale.reference and row["loss"] is not None}
        for row in of_seed:
            if row["batch"] != scale.reference:
                reached = None if row["loss"] is None else samples_at(ladder, row["loss"])
                found[row["batch"], row["exponent"]].append(reached and math.log(reached / row["samples"]))
    return found


def critical_batch(reference: int, worth: dict[int, float]) -> float:
    """Returns the B_c of SE(B) = (B_c + B_ref) / (B_c + B) with the least squares of ln SE."""
    grid = [0.1 * 1.01**i for i in range(1400)]
    return min(grid, key=lambda b_c: sum((math.log((b_c + reference) / (b_c + batch)) - log_worth) ** 2
                                         for batch, log_worth in worth.items()))


def branch_tables(scale: Scale, rows: list[dict]) -> list[str]:
    cells, critical = [], []
    for point in scale.points:
        found = worths(scale, rows, point)
        if not found:
            continue
        tokens, best = mega(point * scale.sequence_length), {}
        for batch in (int(multiple * scale.reference) for multiple in MULTIPLES):
            line, outside = [tokens, f"{batch / scale.reference:g}"], 0
            for exponent in EXPONENTS:
                known = [value for value in found[batch, exponent] if value is not None]
                outside += len(found[batch, exponent]) - len(known)
                line.append(f"{math.exp(statistics.mean(known)):.2f}" if known else "outside")
                if known:
                    best[batch] = max(best.get(batch, -math.inf), statistics.mean(known))
            cells.append([*line, outside])
        noise = [row["noise_scale"] for row in rows
                 if row["stage"] == "trunk" and row["point"] == point and row["noise_scale"] is not None]
        b_c = critical_batch(scale.reference, best) if best else math.nan
        line = [tokens, len(next(iter(found.values()))), f"{b_c:.0f}", "unknown", "unknown"]
        if noise:
            phi = statistics.geometric_mean(noise)
            line[3:] = [f"{phi:.0f}", f"{b_c / phi:.2f}"]
        critical.append(line)
    header = ["tokens", "B / B_ref", *(f"SE at slope {exponent:g}" for exponent in EXPONENTS), "outside of the ladder"]
    return ["**G1: worth of a sample**, mean over seeds", "", *table(header, cells), "",
            "**G1: critical batch**, each batch at its best slope", "",
            *table(["tokens", "seeds", "B_c, samples", "noise scale", "B_c / noise scale"], critical)]


def screening_table(scale: Scale, rows: list[dict]) -> list[str]:
    arms = chosen(scale, rows) or {}
    picked = dict.fromkeys(arms.values())
    cells = [[arm, f"{rate:g}", "failed" if math.isinf(loss) else f"{loss:.4f}",
              "chosen" if (arm, rate) in picked else ""]
             for arm in (*fixed_batches(scale), "copus") for rate, loss in sorted(screened(rows, arm).items())]
    lines = ["**G2: screening**, seed " + str(SCREENING_SEED), "",
             *table(["arm", "rate / base", "loss at the end", ""], cells)]
    for arm, rate in picked:
        rates = screened(rows, arm)
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


def judged_table(scale: Scale, rows: list[dict]) -> list[str]:
    arms = chosen(scale, rows)
    if arms is None:
        return ["**G2: comparison**: not before all screening runs are there"]
    runs = {(row["arm"], row["rate"], row["seed"]): row for row in rows if row["stage"] == "G2"}
    by_name = {name: {seed: runs[*arm, seed] for seed in SEEDS if (*arm, seed) in runs} for name, arm in arms.items()}
    cells = []
    for name, other in (("copus", "static"), ("copus", "law"), ("law", "static")):
        seeds = [seed for seed in SEEDS if seed in by_name[name] and seed in by_name[other]
                 and seed in by_name["static"]]
        pairs = [(by_name[name][seed], by_name[other][seed]) for seed in seeds]
        failed = sum(row["loss"] is None for pair in pairs for row in pair)
        differences = [mine["loss"] - its["loss"] for mine, its in pairs if None not in (mine["loss"], its["loss"])]
        line = [f"{name} / {other}", len(seeds), failed, "", "", ""]
        if len(differences) >= 2:
            mean, width = mean_and_width(differences)
            line[3] = f"{mean:+.4f} ({mean - width:+.4f} to {mean + width:+.4f})"
        if seeds and not failed:
            targets = [by_name["static"][seed]["loss"] for seed in seeds]
            times = [tuple(seconds_to(row, target) for row in pair) for pair, target in zip(pairs, targets)]
            line[4] = f"{math.exp(median_interval([log_ratio(*pair) for pair in times])[0]):.3f}"
            line[5] = f"{sum(mine is None for mine, _ in times)} and {sum(its is None for _, its in times)}"
        cells.append(line)
    return ["**G2: comparison**", "", *table(["arms", "seeds", "failed runs", "loss at the end, difference (95 %)",
                                             "time to static's loss, median ratio", "missed"], cells)]


def report(scale: Scale, rows: list[dict]) -> str:
    done = {row["case"] for row in rows}
    wanted = [branch["case"] for seed in scale.branch_seeds for point in scale.points
              for branch in branches(scale, seed, point)]
    runs = [run["case"] for run in (*screening_runs(scale, rows), *judged_runs(scale, rows))]
    failed = [row["case"] for row in rows if row["stage"] in ("G1", "G2") and row["loss"] is None]
    parts = [speeds(rows), trunks(scale, rows), branch_tables(scale, rows), screening_table(scale, rows),
             judged_table(scale, rows),
             [f"G1: {sum(case in done for case in wanted)} of {len(wanted)} branches; "
              f"G2: {sum(case in done for case in runs)} of {len(runs)} runs known so far; "
              f"failed: {', '.join(failed) or 'none'}"]]
    return "\n\n".join("\n".join(part) for part in parts)
