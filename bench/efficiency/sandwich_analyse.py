#!/usr/bin/env python3
"""Computes the results that sandwich.md asks for from data/sandwich.jsonl, with the rows that exist.

Usage: sandwich_analyse.py [--exponents 0,0.5] [--slopes] [--larger-batch]
"""

import argparse
import collections
import math
import statistics

import numpy

from measure import LENGTH, rows_so_far
from norms import NORMS
from norms import ROWS as NORM_ROWS
from sandwich import BATCHES, ENDS, EXPONENTS, LENGTHS, LOWEST_RATE, MODELS, POINTS, REFERENCE, ROWS, RUN, RUNGS

BEYOND = 0.5  # how many rungs beyond a ladder a loss may lie


def samples_at(ladder: dict[float, float], loss: float) -> float | None:
    """The samples at which a ladder, samples -> loss, reaches a loss; None if that is too far beyond the ladder."""
    rungs = sorted(ladder)
    for i in range(len(rungs) - 1):
        is_first, is_last = i == 0, i == len(rungs) - 2
        high, low = ladder[rungs[i]], ladder[rungs[i + 1]]
        if high <= low:
            continue
        place = (high - loss) / (high - low)
        if (0 <= place or (is_first and place >= -BEYOND)) and (place <= 1 or (is_last and place <= 1 + BEYOND)):
            return math.exp(math.log(rungs[i]) + place * (math.log(rungs[i + 1]) - math.log(rungs[i])))
    return None


def fit_critical_batch(worth: dict[int, float]) -> float:
    """The B_c of SE(B) = (B_c + B_ref) / (B_c + B) with the least squares of ln SE."""
    grid = numpy.exp(numpy.linspace(math.log(0.1), math.log(10_000), 4000))
    error = sum((numpy.log((grid + REFERENCE) / (grid + batch)) - log_worth)**2 for batch, log_worth in worth.items())
    return float(grid[int(numpy.argmin(error))])


class Table:
    """ln SE by batch of one kind of arms: the mean over seeds at the better rate."""

    def __init__(self):
        self.values: dict[tuple[int, float], list[float]] = collections.defaultdict(list)
        self.outside = 0

    def add(self, batch: int, rate: float, ladder: dict[float, float], loss: float | None, before: int, read: int):
        """`before`: samples at the ladder's origin; `read`: the arm's samples before its return."""
        if batch == REFERENCE:
            return
        reached = samples_at(ladder, loss) if loss is not None else None
        if reached is None or reached <= before:
            self.outside += 1
            return
        self.values[batch, rate].append(math.log((reached - before) / read))

    def worth(self) -> dict[int, float]:
        best: dict[int, float] = {}
        for (batch, _), values in self.values.items():
            best[batch] = max(best.get(batch, -math.inf), statistics.mean(values))
        return best


def sandwiches(rows: list[dict], model: str, point: int, lengths: tuple[int, int], end: str) -> Table:
    table = Table()
    chosen = [row for row in rows if row["kind"] == "sandwich" and row["model"] == model and row["point"] == point and
              (row["length"], row["after"]) == lengths]
    for seed in {row["seed"] for row in chosen}:
        of_seed = [row for row in chosen if row["seed"] == seed]
        ladder = {point + row["samples"] + row["after"]: row[end] for row in of_seed if row["batch"] == REFERENCE}
        for row in of_seed:
            table.add(row["batch"], row["exponent"], ladder, row[end], point + row["after"], row["samples"])
    return table


def own_branches(rows: list[dict], model: str, point: int) -> Table:
    table = Table()
    chosen = [row for row in rows if row["kind"] == "own" and row["model"] == model and row["point"] == point]
    for seed in {row["seed"] for row in chosen}:
        of_seed = [row for row in chosen if row["seed"] == seed]
        ladder = {point + row["samples"]: row["loss"] for row in of_seed if row["batch"] == REFERENCE}
        for row in of_seed:
            table.add(row["batch"], row["exponent"], ladder, row["loss"], point, row["samples"])
    return table


def whole_runs(rows: list[dict], model: str) -> Table:
    table = Table()
    for seed in {row["seed"] for row in rows if row["kind"] == "rung" and row["model"] == model}:
        of_seed = [row for row in rows if row["model"] == model and row["seed"] == seed]
        best = collections.defaultdict(lambda: math.inf)
        for row in of_seed:
            if row["kind"] == "whole" and row["loss"] is not None:
                best[row["batch"]] = min(best[row["batch"]], row["loss"])
        ladder = {row["samples"]: row["loss"] for row in of_seed if row["kind"] == "rung"} | {RUN: best[REFERENCE]}
        for batch in BATCHES:
            if batch in best:
                table.add(batch, 0, ladder, best[batch], 0, RUN)
    return table


def whole_run_of(critical_batch) -> float:
    """Returns the critical batch B_c of a whole run. critical_batch(n) is B_c after n samples. A run in batch B needs
    the integral of dn / SE(B; n) from 0 to n* samples to reach the loss that the reference batch reaches with n*
    samples."""
    worth = {}
    for batch in BATCHES:
        step, needed, n = RUN / 20_000, 0.0, 0.0
        while needed < RUN and n < 4 * RUN:
            critical = critical_batch(n + step / 2)
            needed += step * (critical + batch) / (critical + REFERENCE)
            n += step
        worth[batch] = math.log(n / RUN)
    return fit_critical_batch(worth)


def by_points(critical: dict[int, float]):
    """ln B_c linear in ln n between the midpoints of the branches, constant beyond them."""
    middle = {point: point + LENGTHS[point][0][0] / 2 for point in critical}
    x = [math.log(middle[point]) for point in sorted(critical)]
    y = [math.log(critical[point]) for point in sorted(critical)]
    return lambda n: math.exp(numpy.interp(math.log(n), x, y))


def vertex(places: list[float], values: list[float]) -> float:
    """Where the parabola through three points has its maximum; the best of the points if it has none."""
    curvature, slope, _ = numpy.polyfit(places, values, 2)
    return -slope / (2 * curvature) if curvature < 0 else places[int(numpy.argmax(values))]


def own_efficiencies(rows: list[dict], model: str, seed: int, point: int) -> tuple[dict[tuple[int, float], float], int]:
    """ln SE of the own branches by batch and exponent, and how many of them are bounds: a loss beyond the ladder counts
    as the loss of its nearest rung."""
    chosen = [row for row in rows if row["kind"] == "own" and
              (row["model"], row["seed"], row["point"]) == (model, seed, point)]
    ladder = {row["samples"]: row["loss"] for row in chosen if row["batch"] == REFERENCE}
    values, bounds = {}, 0
    for row in (row for row in chosen if row["batch"] != REFERENCE):
        loss = math.inf if row["loss"] is None else row["loss"]
        reached = samples_at({point + samples: rung for samples, rung in ladder.items()}, loss)
        if reached is None or reached <= point:
            bounds += 1
            reached = point + (min(ladder) if loss > ladder[min(ladder)] else max(ladder))
        values[row["batch"], row["exponent"]] = math.log((reached - point) / row["samples"])
    return values, bounds


def larger_batch_alone(rows: list[dict]) -> None:
    """What own branches of 32 alone predict, at one exponent or the better of two: the critical batch of whole runs,
    and the error of ln SE against B_c = a n^0.46 with the a of whole runs."""
    largest = max(BATCHES)
    for model in MODELS:
        truth = fit_critical_batch(whole_runs(rows, model).worth())
        low, high = 1e-3, 1e3
        for _ in range(60):
            a = math.sqrt(low * high)
            low, high = (a, high) if whole_run_of(lambda n: a * n**0.46) < truth else (low, a)
        for name, exponents in {"e = 1/2": (0.5,), "e = 0": (0,), "better of both": (0, 0.5), "e = 1": (1,)}.items():
            critical, errors, outside = {}, [], 0
            for point in POINTS:
                values = []
                for seed in (0, 1):
                    known, _ = own_efficiencies(rows, model, seed, point)
                    values.append(max(known[largest, e] for e in exponents))
                    outside += values[-1] == math.log(min(RUNGS))
                    law = a * (point + sum(LENGTHS[POINTS[0]][0]) / 2)**0.46
                    errors.append(values[-1] - math.log((law + REFERENCE) / (law + largest)))
                efficiency = math.exp(statistics.mean(values))
                critical[point] = (efficiency * largest - REFERENCE) / (1 - efficiency) if efficiency < 1 else 1e4
            predicted = whole_run_of(by_points({point: max(0.1, value) for point, value in critical.items()}))
            print(f"{model}, branches of {largest}, {name}: {predicted / truth:.2f} of whole runs, at the points "
                  f"{({point: round(value, 1) for point, value in critical.items()})}, rms of ln SE "
                  f"{math.sqrt(statistics.mean(error**2 for error in errors)):.2f}, {outside} of {len(errors)} outside")


def slope(values: dict[tuple[int, float], float]) -> float | None:
    """Fits ln SE(B, e) = a_B - k ((e - slope) ln(B / reference batch))^2 by least squares over a, k and the slope. None
    if ln SE has no maximum."""
    design = []
    for batch, exponent in values:
        distance = math.log(batch / REFERENCE)**2
        design.append([float(batch == own) for own in BATCHES] + [exponent * distance, -exponent**2 * distance])
    *_, linear, k = numpy.linalg.lstsq(numpy.array(design), numpy.array(list(values.values())), rcond=None)[0]
    return float(linear / (2 * k)) if k > 0 else None


def slope_of_whole_runs(rows: list[dict], model: str, seed: int) -> float | None:
    """Slope of the best ln rate over ln batch in whole runs; None while runs are missing."""
    points = {}
    for batch in (REFERENCE, *BATCHES):
        losses = {round(math.log2(row["rate"] / LOWEST_RATE)): math.inf if row["loss"] is None else row["loss"]
                  for row in rows if row["kind"] == "whole" and
                  (row["model"], row["seed"], row["batch"]) == (model, seed, batch)}
        best = min(losses, key=losses.get, default=0)
        around = [best - 1, best, best + 1]
        if not all(math.isfinite(losses.get(power, math.inf)) for power in around):
            return None
        points[math.log2(batch)] = vertex(around, [-losses[power] for power in around])
    return float(numpy.polyfit(list(points), list(points.values()), 1)[0])


def slopes(rows: list[dict]) -> None:
    for model in MODELS:
        efficiencies, of_branches, of_runs = {}, [], []
        for seed in sorted({row["seed"] for row in rows if row["kind"] == "own" and row["model"] == model}):
            of_runs.append(slope_of_whole_runs(rows, model, seed))
            for point in POINTS:
                values, bounds = own_efficiencies(rows, model, seed, point)
                if len(values) < len(BATCHES) * len(EXPONENTS):
                    continue
                efficiencies[seed, point] = values
                fitted = slope(values)
                print(f"{model}, seed {seed}, after {point}: slope "
                      f"{'without a maximum' if fitted is None else f'{fitted:.2f}'}"
                      f"{f' ({bounds} bounds)' if bounds else ''}")
                of_branches += [fitted] if fitted is not None else []
        known = [value for value in of_runs if value is not None]
        if not of_branches or not known:
            continue
        print(f"  -> {model}: slope by branches {statistics.mean(of_branches):.2f}, "
              f"by whole runs {statistics.mean(known):.2f} ({', '.join(f'{value:.2f}' for value in known)})")
        third_rate(model, efficiencies)


def third_rate(model: str, efficiencies: dict[tuple[int, int], dict[tuple[int, float], float]]) -> None:
    """What it brings to try the exponent 1 as well: exponents are chosen on one seed and judged on the other."""
    gains = []
    for (seed, point), judged in efficiencies.items():
        chosen = efficiencies.get((1 - seed, point))
        for batch in (16, 32) if chosen else ():
            of_three, of_two = (max(exponents, key=lambda e: chosen[batch, e]) for exponents in (EXPONENTS, (0.5, 0)))
            gains.append(judged[batch, of_three] - judged[batch, of_two])
    if gains:
        print(f"  -> {model}: gain of a third rate in ln SE of 16 and 32: mean {statistics.mean(gains):+.3f}, standard "
              f"error {statistics.stdev(gains) / math.sqrt(len(gains)):.3f}, {len(gains)} cells")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--exponents", default="0,0.5")
    parser.add_argument("--slopes", action="store_true")
    parser.add_argument("--larger-batch", action="store_true")
    arguments = parser.parse_args()
    rows = list(rows_so_far(ROWS).values())
    if arguments.slopes:
        slopes(rows)
        return
    if arguments.larger_batch:
        larger_batch_alone(rows)
        return
    chosen = {float(exponent) for exponent in arguments.exponents.split(",")}
    if missing := chosen - {row.get("exponent") for row in rows}:
        parser.error(f"no rows have the exponents {sorted(missing)}")
    rows = [row for row in rows if row["kind"] not in ("sandwich", "own") or row["batch"] == REFERENCE or
            row["exponent"] in chosen]
    measured: dict[str, dict[int, dict[int, float]]] = {}
    noise: dict[str, dict[int, float]] = {}
    for model in MODELS:
        whole = whole_runs(rows, model)
        if not whole.values:
            continue
        truth = fit_critical_batch(whole.worth())
        print(f"{model}: whole runs, ln SE {shown(whole)}: B_c {truth:.1f}")
        phi = collections.defaultdict(list)
        for row in rows:
            if row["kind"] == "trunk" and row["model"] == model:
                phi[row["consumed"]].append(row["phi"]["noise_scale"])
        noise[model] = {point: statistics.mean(phi[point]) for point in POINTS if phi[point]}
        print(f"  phi {({point: round(value, 1) for point, value in noise[model].items()})}")
        for name in (*ENDS, "own"):
            critical, worth = {}, {}
            for point in POINTS:
                for lengths in LENGTHS[point] if name != "own" else LENGTHS[point][:1]:
                    table = own_branches(rows, model, point) if name == "own" else \
                        sandwiches(rows, model, point, lengths, name)
                    if len(table.worth()) < 3:
                        continue
                    value = fit_critical_batch(table.worth())
                    print(f"  {name}, after {point}, {lengths}: ln SE {shown(table)}: B_c {value:.1f}")
                    if lengths == LENGTHS[point][0]:
                        critical[point], worth[point] = value, table.worth()
            if critical:
                compare(name, whole_run_of(by_points(critical)), truth)
            if name == "decay":
                measured[model] = worth
        if noise[model]:
            compare("c = 2", whole_run_of(by_points({point: 2 * value for point, value in noise[model].items()})), truth)
        compare("published laws", whole_run_of(lambda n: 1e6 * (n * LENGTH / 1e9)**0.5 / LENGTH), truth)
    other = {norm: scales(norm) for norm in NORMS}
    for norm, of_model in other.items():
        print(f"{norm}: {({model: {p: round(v, 1) for p, v in by_point.items()} for model, by_point in of_model.items()})}")
    laws(measured, {"phi": noise} | other)


def scales(norm: str) -> dict[str, dict[int, float]]:
    """The noise scale in a norm by model and point: the geometric mean over seeds."""
    known: dict[str, dict[int, list[float]]] = {}
    for row in rows_so_far(NORM_ROWS).values():
        if row[norm][0]:
            known.setdefault(row["model"], {}).setdefault(row["point"], []).append(row[norm][0])
    return {model: {point: statistics.geometric_mean(values) for point, values in by_point.items()}
            for model, by_point in known.items()}


def compare(name: str, predicted: float, truth: float) -> None:
    print(f"  -> {name}: B_c of whole runs {predicted:.1f}, {predicted / truth:.2f} of what they have")


def shown(table: Table) -> str:
    worth = {batch: round(value, 2) for batch, value in sorted(table.worth().items())}
    return f"{worth}{f' ({table.outside} outside)' if table.outside else ''}"


def laws(measured: dict[str, dict[int, dict[int, float]]], noises: dict[str, dict[str, dict[int, float]]]) -> None:
    """Fits the constant of each law on one model, and prints it with the law's root mean square error of ln SE on the
    other model. `noises` holds noise scales by norm, model and point. All laws are compared at the points where every
    noise scale is known."""
    noises = {norm: noise for norm, noise in noises.items() if set(noise) >= set(measured)}
    forms = {f"c {norm}": lambda model, point, noise=noise: noise[model][point] for norm, noise in noises.items()}
    forms["a n^0.46"] = lambda model, point: (point + LENGTHS[point][0][0] / 2)**0.46
    constants = numpy.exp(numpy.linspace(math.log(1e-3), math.log(1e3), 4000))
    for fitted in measured:
        for judged in set(measured) - {fitted}:
            for name, form in forms.items():
                errors = {}
                for model in (fitted, judged):
                    errors[model] = numpy.mean([
                        (numpy.log((constants * form(model, point) + REFERENCE) / (constants * form(model, point) + b))
                         - value)**2 for point, worth in measured[model].items()
                        if all(point in noise[model] for noise in noises.values()) for b, value in worth.items()],
                        axis=0)
                best = int(numpy.argmin(errors[fitted]))
                print(f"{name}, fitted on {fitted} ({constants[best]:.3g}, rms {math.sqrt(errors[fitted][best]):.3f}): "
                      f"rms on {judged} {math.sqrt(errors[judged][best]):.3f}")


if __name__ == "__main__":
    main()
