#!/usr/bin/env python3
"""Computes the statistical efficiency of larger batches from the rows of the experiment (README.md), fits the forms of
the efficiency curve on the corpora of --fit, and judges the fitted forms on the corpus of --judge.

Usage: analyse.py [--fit CORPUS,...] [--judge CORPUS]

Without --judge no rows of a judging corpus are read.
"""

import argparse
import collections
import itertools
import json
import math
import random
import statistics
import sys
import typing

from measure import MODELS, ROWS, SETS

SMALLEST_ERROR = 0.01  # of ln SE_emp
RESAMPLINGS = 1000
OVERHEADS = (0, 2, 8, 32, 128)  # a/k of step seconds a + k B, in samples
CALIBRATIONS = [math.exp(i / 25) for i in range(-60, 120)]  # c, 0.09 .. 117


UPDATES = [2.5 * i for i in range(33)]  # k, 0 .. 80


def ln_efficiency(point: dict, c: float, updates: float) -> float:
    """Returns ln SE(B) relative to the reference batch. The critical batch B_c follows from 1 / B_c = 1 / (c phi) + k /
    n, where phi is the noise scale and n the number of samples that the trunk has read."""
    critical = 1 / (1 / (c * point["phi"]) + updates / point["consumed"])
    return -math.log((critical + point["batch"]) / (critical + point["reference"]))


class Constants(typing.NamedTuple):
    c: float
    alpha: float
    power: float
    updates: float


class Form:
    """A formula for the logarithm of the efficiency at kappa = batch / reference batch: power * ln SE + alpha * ln
    kappa, with SE as in ln_efficiency. Parameters that are None are fitted."""

    def __init__(self, name: str, c: float | None, alpha: float | None = 0, power: float | None = 1,
                 updates: float | None = 0):
        self.name, self.c, self.alpha, self.power, self.updates = name, c, alpha, power, updates

    def constants(self) -> int:
        return (self.c, self.alpha, self.power, self.updates).count(None)

    def fit(self, points: list[dict]) -> Constants:
        """The constants with the smallest weighted sum of squares."""
        best = None
        for c, updates in itertools.product(CALIBRATIONS if self.c is None else [self.c],
                                            UPDATES if self.updates is None else [self.updates]):
            alpha, power = self.alpha, self.power
            efficiencies = [ln_efficiency(point, c, updates) for point in points]
            if alpha is None or power is None:
                basis = [math.log(p["batch"] / p["reference"]) if alpha is None else e for p, e in zip(points, efficiencies)]
                rest = [p["mean"] - (e * power if alpha is None else math.log(p["batch"] / p["reference"]) * alpha)
                        for p, e in zip(points, efficiencies)]
                weights = [1 / p["error"] ** 2 for p in points]
                value = (sum(w * b * r for w, b, r in zip(weights, basis, rest)) /
                         sum(w * b * b for w, b in zip(weights, basis)))
                alpha, power = (value, power) if alpha is None else (alpha, value)
            constants = Constants(c, alpha, power, updates)
            misfit = sum((residual(p, constants) / p["error"]) ** 2 for p in points)
            if best is None or misfit < best[0]:
                best = (misfit, constants)
        return best[1]


FORMS = [Form("alpha 0, c = 2", 2), Form("alpha 0.5, c = 2", 2, alpha=0.5), Form("alpha 0, c free", None),
         Form("alpha 0.5, c free", None, alpha=0.5), Form("alpha and c free", None, alpha=None),
         Form("SE^(1/2), c free", None, power=0.5), Form("alpha 0, c and k free", None, updates=None)]


def residual(point: dict, constants: Constants) -> float:
    return point["mean"] - worth(point, constants)


def worth(point: dict, constants: Constants) -> float:
    c, alpha, power, updates = constants
    return power * ln_efficiency(point, c, updates) + alpha * math.log(point["batch"] / point["reference"])


def equivalent_samples(ladder: list[tuple[int, float]], loss: float) -> float | None:
    """Samples with which the reference batch reaches this loss, by linear interpolation in their logarithm."""
    ladder = sorted(ladder)
    for (few, worse), (many, better) in zip(ladder, ladder[1:]):
        if better <= loss <= worse:
            share = (worse - loss) / (worse - better)
            return math.exp(math.log(few) + share * math.log(many / few))
    return None


class Rows:
    def __init__(self, corpora: tuple[str, ...]):
        self.phi, self.losses = {}, collections.defaultdict(dict)
        self.outside = collections.Counter()
        for row in map(json.loads, ROWS.read_text().splitlines()):
            model = row["model"] if row["kind"] == "trunk" else SETS[row["set"]][0]
            if model not in corpora:
                continue
            if row["kind"] == "trunk":
                self.phi[model, row["consumed"], row["seed"]] = row["phi"]["noise_scale"]
            else:
                self.losses[row["set"], row["seed"]][row["batch"], row["exponent"], row["samples"]] = row["loss"]

    def efficiencies(self, name: str) -> dict[tuple[int, float], dict[int, float]]:
        """ln SE_emp by (batch, exponent) and seed."""
        model, _, length, _ = SETS[name]
        reference = MODELS[model]["reference_batch"]
        found = collections.defaultdict(dict)
        for (of_set, seed), losses in self.losses.items():
            if of_set != name:
                continue
            ladder = [(samples, loss) for (batch, _, samples), loss in losses.items() if batch == reference]
            for (batch, exponent, _), loss in losses.items():
                if batch == reference:
                    continue
                equivalent = equivalent_samples(ladder, loss)
                if equivalent is None:
                    self.outside[name, batch, exponent] += 1
                else:
                    found[batch, exponent][seed] = math.log(equivalent / length)
        return found

    def seeds(self) -> list[int]:
        return sorted({seed for _, seed in self.losses})


def points_of(rows: Rows, exponent: float = 0.5, seeds: list[int] | None = None) -> list[dict]:
    """Returns the means over seeds for the sets with a measured noise scale phi. A seed that occurs twice in `seeds`
    counts twice."""
    points = []
    for name, (model, point, _, _) in SETS.items():
        if point == 0:
            continue
        for (batch, of_exponent), values in rows.efficiencies(name).items():
            if of_exponent != exponent:
                continue
            chosen = [seed for seed in (seeds if seeds is not None else values) if seed in values]
            if len(set(chosen)) < 2:
                continue
            phis = [rows.phi[model, point, seed] for seed in chosen if rows.phi.get((model, point, seed))]
            deviation = statistics.stdev(values.values()) / math.sqrt(len(values))
            points.append(dict(set=name, batch=batch, reference=MODELS[model]["reference_batch"], seeds=len(chosen),
                               phi=statistics.fmean(phis), consumed=point, mean=statistics.fmean(values[seed] for seed in chosen),
                               error=max(SMALLEST_ERROR, deviation)))
    return points


def root_mean_square(points: list[dict], constants: Constants) -> float:
    return math.sqrt(statistics.fmean(residual(point, constants) ** 2 for point in points))


def interval(values: list[float]) -> str:
    ordered = sorted(values)
    return f"[{ordered[len(ordered) * 25 // 1000]:.2f}, {ordered[len(ordered) * 975 // 1000 - 1]:.2f}]"


def print_table(rows: Rows) -> None:
    print("\n| set | phi | B | " + " | ".join(f"rate kappa^{e:g}" for e in (0, 0.25, 0.5, 1)) + " |\n" + "|---" * 7 + "|")
    for name, (model, point, _, _) in SETS.items():
        found = rows.efficiencies(name)
        phis = [phi for (m, p, _), phi in rows.phi.items() if (m, p) == (model, point) and phi]
        for batch in sorted({batch for batch, _ in found}):
            cells = []
            for exponent in (0, 0.25, 0.5, 1):
                values = list(found.get((batch, exponent), {}).values())
                error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
                mean = math.exp(statistics.fmean(values)) if values else math.nan
                lost = rows.outside[name, batch, exponent]
                cells.append((f"{mean:.3f} +- {mean * error:.3f}" if values else "") + (f" ({lost} outside)" if lost else ""))
            phi = f"{statistics.fmean(phis):.3g}" if phis else ""
            print(f"| {name} | {phi} | {batch} | " + " | ".join(cells) + " |")


def fit_forms(rows: Rows) -> list[tuple[Form, Constants]]:
    points = points_of(rows)
    if len(points) < 3:
        sys.exit(f"\nNothing to fit yet: {len(points)} points with a noise scale and two seeds")
    print(f"\nFitted: {len(points)} points, seeds {rows.seeds()}\n")
    print("| form | c | alpha | power | k | rms of ln SE | chi^2 per point |" + "\n" + "|---" * 7 + "|")
    draw = random.Random(1)
    resampled = [points_of(rows, seeds=draw.choices(rows.seeds(), k=len(rows.seeds()))) for _ in range(RESAMPLINGS // 5)]
    fitted = []
    for form in FORMS:
        constants = form.fit(points)
        samples = [form.fit(some) for some in resampled if len(some) == len(points)] if form.constants() else []
        cells = [f"{value:.2f} " + (interval([sample[i] for sample in samples]) if free is None and samples else "")
                 for i, (value, free) in enumerate(zip(constants, (form.c, form.alpha, form.power, form.updates)))]
        chi = statistics.fmean((residual(p, constants) / p["error"]) ** 2 for p in points)
        print(f"| {form.name} | {' | '.join(cells)} | {root_mean_square(points, constants):.3f} | {chi:.1f} |")
        fitted.append((form, constants))
    by_set = collections.defaultdict(list)
    for point in points:
        by_set[point["set"]].append(point)
    print("\nc of alpha 0 by set: " + ", ".join(f"{name} {FORMS[2].fit(some).c:.2f}" for name, some in by_set.items()))
    return fitted


def print_costs(points: list[dict], fitted: list[tuple[Form, Constants]]) -> None:
    """Prints how many seconds a run loses if it uses the batch that a form prefers instead of the best measured batch:
    the mean and the worst over sets."""
    print("\n| form | " + " | ".join(f"a/k = {a}" for a in OVERHEADS) + " |\n" + "|---" * (len(OVERHEADS) + 1) + "|")
    for form, constants in fitted:
        cells = []
        for overhead in OVERHEADS:
            losses = []
            for name in sorted({point["set"] for point in points}):
                some = [point for point in points if point["set"] == name]
                reference = dict(some[0], batch=some[0]["reference"], mean=0.0)
                options = [reference, *some]

                def speed(point: dict) -> float:
                    return math.log(point["batch"] / (overhead + point["batch"]))

                chosen = max(options, key=lambda point: speed(point) + worth(point, constants))
                best = max(speed(point) + point["mean"] for point in options)
                losses.append(math.exp(best - speed(chosen) - chosen["mean"]) - 1)
            cells.append(f"{100 * statistics.fmean(losses):.1f} % (worst {100 * max(losses):.1f} %)")
        print(f"| {form.name} | " + " | ".join(cells) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fit", default="gcide", help="corpora to fit the forms on")
    parser.add_argument("--judge", choices=list(MODELS), help="corpus to judge them on")
    arguments = parser.parse_args()
    rows = Rows(tuple(arguments.fit.split(",")))
    print_table(rows)
    fitted = fit_forms(rows)
    print_costs(points_of(rows), fitted)
    if arguments.judge is None:
        return
    judging = Rows((arguments.judge,))
    print_table(judging)
    points = points_of(judging)
    print(f"\nJudged on {arguments.judge}: {len(points)} points\n\n| form | rms of ln SE |\n|---|---|")
    for form, constants in fitted:
        print(f"| {form.name} | {root_mean_square(points, constants):.3f} |")
    print_costs(points, fitted)


if __name__ == "__main__":
    sys.exit(main())
