#!/usr/bin/env python3
"""How often the adviser's test of norms (python/copus/input_checks.py) is a false alarm, and which mistakes it notices.

See README.md beside it. Simulates steps of jobs whose gradient and noise are known, in scenarios of two halves: window and
threshold were chosen on the first half alone; what is stated is the second, by default.
"""

import argparse
import itertools
import json
import pathlib
import sys

import numpy

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "build-python/python")]

from copus import input_checks  # noqa: E402

WINDOW = max(steps for steps, _ in input_checks.TESTS)

# (directions of the noise, degrees of freedom of a sample's length, samples of the micro-batch, micro-batches)
SHAPES = {
    "chosen": list(itertools.product((2, 30), (3, None), (1, 4), (2, 16))),
    "judged": list(itertools.product((4, 100), (2.5, 6, None), (2, 8), (2, 4, 8))),
}
NOISE_PER_BATCH = (0.01, 1, 100, 1e6)  # noise scale / batch: from all signal to no signal at all

# What a user gets wrong: the factor on the small batch's squared norm, of B/b.
MISTAKES = {
    "loss_scale of 1024 not told": lambda ratio: 1024.0**2,
    "loss_scale of 8 not told": lambda ratio: 64.0,
    "samples of step 2 x too large": lambda ratio: 4.0,
    "samples of step 2 x too small": lambda ratio: 0.25,
    "gradient left from the step before": None,
    "norm of half the parameters": "half",
}


def steps_of(random, steps, shape, noise_per_batch, half=False, left=False):
    """Squared norms of the small and the large batch: [steps] each, and B/b."""
    directions, freedom, micro_batch, parts = shape
    samples = micro_batch * parts
    noise_scale = noise_per_batch * samples
    gradient = numpy.zeros(directions)
    gradient[0] = 1.0
    noise = random.standard_normal((steps, samples, directions)) * numpy.sqrt(noise_scale / directions)
    if freedom is not None:  # samples of very different lengths: Student's t
        noise *= numpy.sqrt((freedom - 2) / random.chisquare(freedom, (steps, samples, 1)))
    sums = (gradient + noise).reshape(steps, parts, micro_batch, directions).mean(2)
    small, large = sums[:, 0], sums.mean(1)
    if left:
        before = numpy.roll(large, 1, axis=0)
        small, large = small + before * parts, large + before
    kept = directions // 2 if half else directions
    return (small**2).sum(1), (large[:, :kept] ** 2).sum(1), parts


def alarms(small, large, shape, factor, claimed=1.0):
    """How many of the windows that do not overlap object."""
    micro_batch, parts = shape[2], shape[3]
    samples = max(micro_batch + 1, round(micro_batch * parts * claimed))
    windows = 0
    found = 0
    for begin in range(0, len(small) - WINDOW + 1, WINDOW):
        checks = input_checks.InputChecks()
        objected = False
        for s, l in zip(small[begin : begin + WINDOW], large[begin : begin + WINDOW]):
            checks.observe(float(numpy.sqrt(l)), samples, micro_batch, float(s * factor))
            objected |= bool(checks.objection())
        windows += 1
        found += objected
    return found, windows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--half", choices=SHAPES, default="judged")
    parser.add_argument("--windows", type=int, default=200, help="of each scenario")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    random = numpy.random.default_rng([arguments.seed, arguments.half == "judged"])
    steps = arguments.windows * WINDOW
    worst, total, all_windows = (0.0, None), 0, 0
    for shape, noise in itertools.product(SHAPES[arguments.half], NOISE_PER_BATCH):
        small, large, _ = steps_of(random, steps, shape, noise)
        found, windows = alarms(small, large, shape, 1.0)
        total, all_windows = total + found, all_windows + windows
        worst = max(worst, (found / windows, (shape, noise)), key=lambda each: each[0])
    print(f"false alarms: {total} of {all_windows} windows of {WINDOW} steps; "
          f"worst scenario {worst[0]:.2%} {worst[1]}")  # fmt: skip
    for mistake, factor in MISTAKES.items():
        shares = {}
        for noise in NOISE_PER_BATCH:
            found = windows = 0
            for shape in SHAPES[arguments.half]:
                few = max(20, arguments.windows // 5) * WINDOW
                small, large, parts = steps_of(random, few, shape, noise, half=factor == "half", left=factor is None)
                scale = factor(parts) if callable(factor) else 1.0
                claimed = {4.0: 2.0, 0.25: 0.5}.get(scale, 1.0)
                if shape[2] * parts * claimed <= shape[2]:
                    continue  # the step would be no larger than its micro-batch, which is refused
                one, of = alarms(small, large, shape, scale, claimed)
                found, windows = found + one, windows + of
            shares[f"{noise:g}"] = round(found / windows, 3) if windows else None
        print(f"noticed, {mistake}, by noise scale / batch: {json.dumps(shares)}")


if __name__ == "__main__":
    main()
