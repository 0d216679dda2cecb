#!/usr/bin/env python3
"""How often does the adviser's test of norms (python/copus/input_checks.py) raise a false alarm, and after how many
steps does it notice each kind of mistake?

See README.md in this folder. Simulates steps of jobs whose gradient and noise are known. One half of the scenarios was
used to choose the test's parameters. By default, only the other half is reported, with other seeds.
"""

import argparse
import itertools
import pathlib
import sys

import numpy

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "build-python/python")]

from copus.input_checks import InputChecks  # noqa: E402

# (directions of the noise, degrees of freedom of a sample's length, samples of the micro-batch, micro-batches)
SHAPES = {
    "chosen": list(itertools.product((2, 30), (3, None), (1, 4), (2, 16))),
    "judged": list(itertools.product((4, 100), (2.5, 6, None), (2, 8), (2, 4, 8))),
}
NOISE_PER_BATCH = (0.01, 1, 100, 1e6)  # noise scale / batch: from all signal to no signal at all
HORIZONS = (32, 512, 4096)  # steps after which power is reported
PIECE = 512  # steps simulated at once


class Mistake:
    """A user's mistake, as factors on two inputs: the small gradient's squared norm, and the number of samples passed
    to step()."""

    def __init__(self, factor=1.0, claimed=1.0, half=False, left=False):
        self.factor, self.claimed, self.half, self.left = factor, claimed, half, left


MISTAKES = {
    "loss_scale of 1024 not told": Mistake(factor=1024.0**2),
    "loss_scale of 8 not told": Mistake(factor=64.0),
    "samples of step 2 x too large": Mistake(factor=4.0, claimed=2.0),
    "samples of step 2 x too small": Mistake(factor=0.25, claimed=0.5),
    "gradient left from the step before": Mistake(left=True),
    "norm of half the parameters": Mistake(half=True),
}


def steps_of(random, steps, shape, noise_per_batch, mistake):
    """Squared norms of the small and the large batch, each [steps]."""
    directions, freedom, micro_batch, parts = shape
    samples = micro_batch * parts
    gradient = numpy.zeros(directions)
    gradient[0] = 1.0
    noise = random.standard_normal((steps, samples, directions), dtype=numpy.float32)
    noise *= numpy.sqrt(noise_per_batch * samples / directions)
    if freedom is not None:  # samples of very different lengths: Student's t
        noise *= numpy.sqrt((freedom - 2) / random.chisquare(freedom, (steps, samples, 1)))
    sums = gradient + noise.reshape(steps, parts, micro_batch, directions).mean(2)
    small, large = sums[:, 0], sums.mean(1)
    if mistake.left:
        before = numpy.roll(large, 1, axis=0)
        small, large = small + before * parts, large + before
    kept = directions // 2 if mistake.half else directions
    return (small**2).sum(1) * mistake.factor, (large[:, :kept] ** 2).sum(1)


def first_alarm(random, steps, shape, noise, mistake):
    """The first step of one job at which the test objects; infinity if it never does."""
    micro_batch, parts = shape[2], shape[3]
    samples = round(micro_batch * parts * mistake.claimed)
    checks = InputChecks()
    for begin in range(0, steps, PIECE):
        small, large = steps_of(random, min(PIECE, steps - begin), shape, noise, mistake)
        for index, (s, l) in enumerate(zip(small.tolist(), large.tolist())):
            checks.observe(l**0.5, samples, micro_batch, s)
            if checks.objection:
                return begin + index + 1
    return float("inf")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--half", choices=SHAPES, default="judged")
    parser.add_argument("--jobs", type=int, default=10, help="of each scenario")
    parser.add_argument("--steps", type=int, default=HORIZONS[-1], help="of each job")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    random = numpy.random.default_rng([arguments.seed, arguments.half == "judged"])
    shapes, jobs = SHAPES[arguments.half], arguments.jobs
    alarms = {}
    for scenario in itertools.product(shapes, NOISE_PER_BATCH):
        found = [first_alarm(random, arguments.steps, *scenario, Mistake()) for _ in range(jobs)]
        alarms[scenario] = sum(step <= arguments.steps for step in found)
    worst = max(alarms, key=alarms.get)
    print(f"false alarms: in {sum(alarms.values())} of {jobs * len(alarms)} jobs of {arguments.steps} steps; "
          f"worst scenario {alarms[worst]} of {jobs} {worst}")  # fmt: skip
    for name, mistake in MISTAKES.items():
        shown = []
        for noise in NOISE_PER_BATCH:
            # A step that is not larger than its micro-batch is refused.
            possible = [shape for shape in shapes if round(shape[2] * shape[3] * mistake.claimed) > shape[2]]
            found = [first_alarm(random, arguments.steps, shape, noise, mistake)
                     for shape in possible for _ in range(jobs)]  # fmt: skip
            shares = [100 * sum(step <= horizon for step in found) / len(found) for horizon in HORIZONS]
            shown.append(f"{noise:g}: " + ", ".join(f"{share:.0f}" for share in shares))
        print(f"noticed, {name}, by noise scale / batch, % within {HORIZONS} steps: " + "; ".join(shown), flush=True)


if __name__ == "__main__":
    main()
