"""Prints how narrow each candidate makes the interval of the noise scale, from the files of record.py (README.md)."""

import argparse
import pathlib

import numpy

from estimator import NoiseAverages

CHOOSING = (1, 2)
# Global batch, micro-batch, data-parallel ranks; every rank has at least two micro-batches.
CONDITIONS = [(4, 1, 1), (4, 1, 2), (16, 1, 1), (16, 1, 2), (16, 1, 4), (16, 4, 1), (16, 4, 2), (64, 1, 1), (64, 1, 2),
              (64, 1, 4), (64, 4, 1), (64, 4, 2), (64, 4, 4), (64, 4, 8)]
CANDIDATES = ("first", "four", "half", "ends", "doubling", "inverse", "fitted", "share", "pair", "halves", "all")
WINDOWS = 400


def lengths_of(candidate, batch, micro, ranks):
    """Returns the samples of each part of a rank's share."""
    share = batch // ranks
    doubling = [micro << i for i in range(20) if micro << i < share] + ([share] if ranks > 1 else [])
    half = (share // micro // 2) * micro
    four = min(max(4, micro), half)
    return {"first": [micro], "four": [four], "half": [half], "ends": [micro, half],
            "share": [share if ranks > 1 else micro],
            "pair": sorted({micro, share if ranks > 1 else micro})}.get(candidate, doubling)


def traces_of(products, lengths, ranks):
    """tr(Sigma) by each part of `lengths`, [parts, runs], from inner products [runs, B, B]."""
    batch = products.shape[-1]
    large = products.sum((1, 2)) / batch ** 2
    starts = range(0, batch, batch // ranks)
    return numpy.stack([
        (numpy.mean([products[:, s:s + k, s:s + k].sum((1, 2)) for s in starts], axis=0) / k ** 2 - large)
        / (1 / k - 1 / batch) for k in lengths]), large


def weights_of(candidate, lengths, batch, fitted):
    if candidate == "fitted":
        return fitted
    weights = [(batch - k) / (batch + k) if candidate == "inverse" else 1 for k in lengths]
    return numpy.array(weights) / sum(weights)


def block_norm(products, length):
    """The mean squared norm of the gradients of disjoint parts of `length` samples."""
    blocks = [products[:, s:s + length, s:s + length].sum((1, 2)) for s in range(0, products.shape[-1], length)]
    return numpy.mean(blocks, axis=0) / length ** 2


def combine(products, candidate, micro, ranks, fitted):
    """The squared gradient norms of a micro-batch, as the candidate computes it, and of the whole batch. Each has shape
    [runs]."""
    batch = products.shape[-1]
    if candidate == "all":
        return block_norm(products, micro), block_norm(products, batch)
    if candidate == "halves":
        large = block_norm(products, batch)
        trace = (block_norm(products, batch // 2) - large) / (2 / batch - 1 / batch)
        return large + trace * (1 / micro - 1 / batch), large
    lengths = lengths_of(candidate, batch, micro, ranks)
    traces, large = traces_of(products, lengths, ranks)
    trace = weights_of(candidate, lengths, batch, fitted) @ traces
    return large + trace * (1 / micro - 1 / batch), large


def truth_of(products):
    """phi of a finite set of samples from which steps are drawn without replacement."""
    n = len(products)
    mean_square, square_of_mean = numpy.trace(products) / n, products.sum() / n ** 2
    trace = (mean_square - square_of_mean) * n / (n - 1)
    return trace / (square_of_mean - trace / n)


def draw_steps(products, batch, steps, random):
    for _ in range(steps):
        chosen = random.permuted(numpy.tile(numpy.arange(len(products)), (WINDOWS, 1)), axis=1)[:, :batch]
        yield products[chosen[:, :, None], chosen[:, None, :]]


def fit_weights(sets, batch, micro, ranks):
    """Minimum-variance weights for `doubling`, from one step of each window of each set."""
    lengths = lengths_of("doubling", batch, micro, ranks)
    covariance = 0
    for products in sets:
        for step in draw_steps(products, batch, 4, numpy.random.default_rng(5)):
            traces = traces_of(step, lengths, ranks)[0]
            covariance = covariance + numpy.atleast_2d(numpy.cov(traces)) / numpy.mean(traces) ** 2
    weights = numpy.linalg.solve(covariance, numpy.ones(len(lengths)))
    return weights / weights.sum()


def held_still(products, condition, fitted):
    """Returns {candidate: (median width, error, coverage)}."""
    batch, micro, ranks = condition
    averages = {name: NoiseAverages(WINDOWS) for name in CANDIDATES}
    for step in draw_steps(products, batch, max(32, 1024 // batch), numpy.random.default_rng(7)):
        for name, average in averages.items():
            small, large = combine(step, name, micro, ranks, fitted)
            average.observe(micro, small, batch, large)
    truth, result = truth_of(products), {}
    for name, average in averages.items():
        value, low, high = average.noise_scale()
        high = numpy.where(numpy.isnan(high), numpy.inf, high)
        with numpy.errstate(divide="ignore"):
            width = numpy.log(high / low)
        error = numpy.log(value[~numpy.isnan(value)] / truth)
        covered = (low <= truth) & (truth <= high)
        result[name] = (numpy.median(width), numpy.sqrt(numpy.mean(error ** 2)), numpy.mean(covered))
    return result


def while_training(steps, condition, fitted):
    """Returns {candidate: median width at three points of the run}."""
    batch, micro, ranks = condition
    result = {}
    for name in CANDIDATES:
        average, widths = NoiseAverages(1), []
        for index, products in enumerate(steps, 1):
            small, large = combine(products[None], name, micro, ranks, fitted)
            average.observe(micro, small, batch, large)
            if index * 4 in (len(steps), 2 * len(steps), 4 * len(steps)):
                _, low, high = average.noise_scale()
                widths.append(float(numpy.log(high / low)[0]) if low[0] > 0 and not numpy.isnan(high[0]) else numpy.inf)
        result[name] = numpy.median(widths)
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--half", choices=("choosing", "judging"), default="choosing")
    arguments = parser.parse_args()
    print(f"{arguments.half} seeds: width held still / error / coverage / width while training, means over seeds")
    print("| batch, micro-batch, ranks | " + " | ".join(CANDIDATES) + " |")
    print("|---" * (len(CANDIDATES) + 1) + "|")
    for condition in CONDITIONS:
        files = sorted(arguments.folder.glob(f"seed*-batch{condition[0]}.npz"))
        is_choosing = {f: int(f.name[4:].split("-")[0]) in CHOOSING for f in files}
        fitted = fit_weights([numpy.load(f)["held_still"] for f in files if is_choosing[f]], *condition)
        rows = {name: [] for name in CANDIDATES}
        for file in files:
            if is_choosing[file] != (arguments.half == "choosing"):
                continue
            data = numpy.load(file)
            still = held_still(data["held_still"], condition, fitted)
            moving = while_training(data["steps"], condition, fitted)
            for name in CANDIDATES:
                rows[name].append((*still[name], moving[name]))
        cells = ["{:.2f} / {:.2f} / {:.0f} % / {:.2f}".format(m[0], m[1], 100 * m[2], m[3])
                 for m in (numpy.mean(rows[name], axis=0) for name in CANDIDATES)]
        print(f"| {condition} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
