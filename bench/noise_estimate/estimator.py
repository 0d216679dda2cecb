"""Computes the averages and the interval of copus/statistics/noise_scale for many runs at once: every number of
NoiseAverage is an array over runs."""

import math

import numpy

USUAL_EXCESS, STEPS_TO_EXPECT, FIRST_WINDOW = 10, 10, 8
SUMS = ("weight", "squared_gradient", "trace", "square_weight", "fourth_weight", "square_squared_gradient",
        "square_trace", "squared_gradient_squared", "trace_squared", "product")


def student_t(degrees):
    """Returns the t of a 95 % interval, by integrating the density in x with t = sqrt(nu) tan(x)."""
    x = numpy.linspace(0, math.pi / 2, 200001)
    density = numpy.cos(x) ** (degrees - 1)
    mass = numpy.concatenate([[0], numpy.cumsum((density[1:] + density[:-1]) / 2)])
    return math.sqrt(degrees) * math.tan(numpy.interp(0.95, mass / mass[-1], x))


INVERSE_DEGREES = numpy.linspace(1 / 20000, 1, 1500)
QUANTILES = numpy.array([student_t(1 / inverse) for inverse in INVERSE_DEGREES])


class NoiseAverages:
    def __init__(self, runs, window_samples=2048, least_steps=32, largest_share=0.25):
        self.window = window_samples, least_steps, largest_share
        self.steps = 0
        self.samples = 0.0
        for name in SUMS:
            setattr(self, name, numpy.zeros(runs))

    def observe(self, small_batch, small_norm, large_batch, large_norm, alike=False):
        window, least, share = self.window
        weight = min(large_batch, window / least)
        growing = max(share * (self.samples + weight), FIRST_WINDOW * weight)
        decay = math.exp(-weight / min(window, growing))
        factor = numpy.ones(len(self.weight))
        if alike:
            weight = decay = 1
        elif self.steps >= STEPS_TO_EXPECT:
            for batch, norm in ((small_batch, small_norm), (large_batch, large_norm)):
                limit = USUAL_EXCESS * (numpy.maximum(self.squared_gradient, 0) + self.trace / batch) / self.weight
                beyond = (limit > 0) & (norm > limit)
                factor = numpy.where(beyond, numpy.minimum(factor, (limit / norm) ** 2), factor)
        self.steps += 1
        self.samples += weight
        w, d2 = weight * factor, decay * decay
        s = w * w
        x = (large_batch * large_norm - small_batch * small_norm) / (large_batch - small_batch)
        y = (small_norm - large_norm) * small_batch * large_batch / (large_batch - small_batch)
        for name, old, new in zip(SUMS, (decay, decay, decay, d2, d2 * d2, d2, d2, d2, d2, d2),
                                  (w, w * x, w * y, s, s * s, s * x, s * y, s * x * x, s * y * y, s * x * y)):
            setattr(self, name, old * getattr(self, name) + new)

    def noise_scale(self):
        """Returns value, low, high; value and high are NaN where there is only a lower bound."""
        x, y = self.squared_gradient / self.weight, self.trace / self.weight
        denominator = self.weight ** 2 - self.square_weight

        def covariance(product, sum_u, u, sum_v, v):
            return (product - u * sum_v - v * sum_u + u * v * self.square_weight) / denominator

        sx, sy = self.square_squared_gradient, self.square_trace
        var_x = numpy.maximum(covariance(self.squared_gradient_squared, sx, x, sx, x), 0)
        var_y = numpy.maximum(covariance(self.trace_squared, sy, y, sy, y), 0)
        cov = covariance(self.product, sx, x, sy, y)
        degrees = numpy.maximum(self.square_weight ** 2 / self.fourth_weight - 1, 1)
        t = numpy.interp(1 / degrees, INVERSE_DEGREES, QUANTILES)
        possible = numpy.maximum(x, 0)
        a = possible ** 2 - t * t * var_x
        b = possible * y - t * t * cov
        c = y * y - t * t * var_y
        root = numpy.sqrt(numpy.maximum(b * b - a * c, 0))
        with numpy.errstate(all="ignore"):
            low = numpy.where((c <= 0) | (y <= 0), 0, c / (b + root))
            low = numpy.where(numpy.isfinite(low), low, 0)
            bounded = (x > 0) & (a > 0)
            value = numpy.where(bounded, numpy.maximum(y / x, 0), numpy.nan)
            high = numpy.where(bounded, numpy.maximum((b + root) / a, 0), numpy.nan)
        return value, low, high
