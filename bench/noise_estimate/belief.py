"""Which value within the noise scale's interval is the best estimate of the truth? Simulates the gradient norms of many
runs. Prints the error of each candidate value at several steps, and at the first step at which the noise scale has a
value (README.md)."""

import argparse

import numpy

from estimator import NoiseAverages

BATCHES, SCALES, DIMENSIONS = (4, 8, 16, 32, 64, 128, 256), (8, 32, 128, 512), (100, 1000, 10000)
CHOOSING = (8, 128)
STEPS = (8, 16, 32, 64, 128, 512)
RUNS = 400


def draw(random, runs, phi, dimensions, small, batch):
    """Squared norms of the first `small` samples and of the batch, for |G|^2 = 1 and tr(Sigma) = phi."""
    each, share = phi / dimensions, small / batch
    variance = each / small
    along = numpy.sqrt(variance) * random.standard_normal(runs)
    across = variance * random.chisquare(dimensions - 1, runs)
    a = 1 + 2 * along + along ** 2 + across
    rest, deviation = 1 - share, numpy.sqrt(each / (batch - small))
    beside = rest * deviation * random.standard_normal(runs)
    whole_along = share * along + rest * deviation * random.standard_normal(runs)
    whole_across = (share ** 2 * across + 2 * share * numpy.sqrt(across) * beside + beside ** 2
                    + rest ** 2 * deviation ** 2 * random.chisquare(dimensions - 2, runs))
    return a, 1 + 2 * whole_along + whole_along ** 2 + whole_across


def middle(low, high):
    return numpy.sqrt(low * high)


def shrunk(width):
    def take(value, low, high):
        share = numpy.minimum(1, numpy.log(high / low) / numpy.log(width))
        return value ** (1 - share) * middle(low, high) ** share
    return take


def capped(width):
    def take(value, low, high):
        return numpy.minimum(numpy.maximum(value, middle(low, numpy.minimum(high, width * low))), high)
    return take


RULES = {
    "value": lambda value, low, high: value,
    "geometric": lambda value, low, high: middle(low, high),
    "half": lambda value, low, high: numpy.sqrt(value * middle(low, high)),
    **{f"narrow-{k}": lambda value, low, high, k=k: numpy.where(high < k * low, value, low) for k in (3, 10, 30)},
    **{f"shrunk-{k}": shrunk(k) for k in (10, 100, 1000)},
    **{f"capped-{k}": capped(k) for k in (3, 5, 10, 30, 100)},
    **{f"lifted-{k}": lambda value, low, high, k=k: numpy.where(high < k * low, value, numpy.maximum(value, 3 * low))
       for k in (30, 100)},
}


def believed(rule, value, low, high):
    with numpy.errstate(all="ignore"):
        return numpy.where(numpy.isnan(value), low, RULES[rule](value, low, high))


def run(phi, dimensions, batch, rising, random):
    """Yields (step or "first", true phi by run, value, low, high) for all runs."""
    averages = NoiseAverages(RUNS)
    small = 4 if batch > 4 else 2
    first = numpy.full((4, RUNS), numpy.nan)
    for step in range(1, max(STEPS) + 1):
        truth = phi * (step / 128) ** 0.5 if rising else phi
        a, c = draw(random, RUNS, truth, dimensions, small, batch)
        averages.observe(small, a, batch, c)
        if step < 2:
            continue
        value, low, high = averages.noise_scale()
        appears = numpy.isnan(first[0]) & ~numpy.isnan(value)
        first[:, appears] = numpy.stack([numpy.full(RUNS, truth), value, low, high])[:, appears]
        if step in STEPS:
            yield step, numpy.full(RUNS, truth), value, low, high
    yield "first", *first


def collect(rising):
    """Returns {half: {(rule, moment): list of arrays of ln(believed / true), one for each condition}}."""
    errors = {"choosing": {}, "judging": {}}
    for phi in SCALES:
        for dimensions in DIMENSIONS:
            for batch in BATCHES:
                random = numpy.random.default_rng([phi, dimensions, batch, rising])
                half = "choosing" if phi in CHOOSING else "judging"
                runs = slice(0 if half == "choosing" else 1, None, 2)
                for moment, truth, value, low, high in run(phi, dimensions, batch, rising, random):
                    for rule in RULES:
                        guess = believed(rule, value, low, high)[runs]
                        fine = guess > 0
                        errors[half].setdefault((rule, moment), []).append(numpy.log(guess[fine] / truth[runs][fine]))
    return errors


def main():
    argparse.ArgumentParser(description=__doc__).parse_args()
    for rising in (0, 1):
        errors = collect(rising)
        for half, of_half in errors.items():
            print(f"\n{'rising' if rising else 'constant'} noise scale, {half} half: "
                  "root mean square of ln(believed / true) (median of believed / true)")
            moments = list(STEPS) + ["first"]
            print("| rule | mean over steps | " + " | ".join(map(str, moments)) + " |")
            print("|---" * (len(moments) + 2) + "|")
            for rule in RULES:
                rms = {m: numpy.mean([numpy.sqrt(numpy.mean(e ** 2)) for e in of_half[rule, m] if len(e)])
                       for m in moments}
                medians = {m: numpy.exp(numpy.median(numpy.concatenate(of_half[rule, m]))) for m in moments}
                cells = [f"{rms[m]:.2f} ({medians[m]:.2f})" for m in moments]
                print(f"| {rule} | {numpy.mean([rms[m] for m in STEPS]):.3f} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
