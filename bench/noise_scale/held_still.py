"""Computes the noise scale from the lines of run.jsonl in which the weights were fixed. All steps count equally, as in
the reference (`copus gns`). So the two differ only in where the norms come from. The formulas come from
copus/statistics/gradient_noise.h (two batch sizes) and copus/statistics/noise_scale.h (Fieller's interval).
"""

import math
import statistics


def noise_scale(records: list[dict]) -> dict:
    """Returns |G|^2, tr(Sigma) and their ratio, named as in `copus gns --json`. Steps without a second batch size, or
    with norms that are not finite, are left out. If fewer than two steps remain, all three are unknown."""
    counted = [record for record in records
               if record["small_batch_squared_norm"] is not None and record["grad_norm"] is not None]
    if len(counted) < 2:
        return {"noise_scale": None, "noise_scale_low": None, "noise_scale_high": None, "steps": len(counted)}
    gradients, traces = zip(*map(estimate, counted))
    g, s = statistics.fmean(gradients), statistics.fmean(traces)
    g_variance = statistics.variance(gradients, g) / len(counted)
    s_variance = statistics.variance(traces, s) / len(counted)
    covariance = statistics.covariance(gradients, traces) / len(counted)
    value, low, high = fieller(g, s, g_variance, s_variance, covariance, student_t(len(counted) - 1))
    return {"noise_scale": value, "noise_scale_low": low, "noise_scale_high": high,
            "squared_gradient": g, "squared_gradient_error": math.sqrt(g_variance),
            "trace": s, "trace_error": math.sqrt(s_variance), "steps": len(counted)}


def estimate(record: dict) -> tuple[float, float]:
    """|G|^2 and tr(Sigma) of one step."""
    small, large = record["small_batch"], record["global_batch"]
    small_norm, large_norm = record["small_batch_squared_norm"], record["grad_norm"] ** 2
    return ((large * large_norm - small * small_norm) / (large - small),
            (small_norm - large_norm) / (1 / small - 1 / large))


def fieller(g: float, s: float, g_variance: float, s_variance: float, covariance: float,
            t: float) -> tuple[float | None, float, float | None]:
    """s / g with its interval; only a lower bound if g is not significantly above 0."""
    a, b, c = g * g - t * t * g_variance, g * s - t * t * covariance, s * s - t * t * s_variance
    root = math.sqrt(max(b * b - a * c, 0))
    low = c / (b + root) if c > 0 and s > 0 and b + root > 0 else 0.0
    if g <= t * math.sqrt(g_variance):
        return None, low, None
    return max(s / g, 0), low, max((b + root) / a, 0)


def student_t(degrees_of_freedom: int) -> float:
    """The 97.5 % quantile (Abramowitz and Stegun, 26.7.5); within 0.5 % from 7 degrees of freedom on."""
    z, v = statistics.NormalDist().inv_cdf(0.975), degrees_of_freedom
    return z + (z**3 + z) / (4 * v) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
