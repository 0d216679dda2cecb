#include "copus/statistics/noise_scale.h"

#include <algorithm>
#include <cmath>

#include "copus/base/error.h"
#include "copus/statistics/student_t.h"

namespace copus {

namespace {

// If a squared norm exceeds its expectation by more than this factor, the step gets a smaller weight (once enough steps
// have been observed). The weight falls with the square of the excess, so larger spikes have less influence. Training
// at a high learning rate has spikes whose squared norms are thousands of times the usual ones.
constexpr double usual_excess = 10;
constexpr int64_t steps_to_expect = 10;

// The window at the start of the run, in steps.
constexpr double first_window_in_steps = 8;

double outlier_weight(const NoiseAverage& average, const NormObservation& observation) {
  if (average.steps < steps_to_expect) return 1;
  const auto weight_of = [&](double batch, double squared_norm) {
    const double expected = (std::max(average.squared_gradient, 0.0) + average.trace / batch) / average.weight;
    const double limit = usual_excess * expected;
    return limit > 0 && squared_norm > limit ? std::pow(limit / squared_norm, 2) : 1.0;
  };
  return std::min(weight_of(observation.small_batch, observation.small_squared_norm),
                  weight_of(observation.large_batch, observation.large_squared_norm));
}

struct StepWeight {
  double samples;  // samples by which the step advances the run
  double weight;   // its weight among the other steps
};

NoiseAverage add(const NoiseAverage& average, double decay, const StepWeight& step,
                 const NormObservation& observation) {
  const GradientNoise noise = estimate(observation);
  if (!std::isfinite(noise.squared_gradient) || !std::isfinite(noise.trace)) return average;

  const double decay_of_squares = decay * decay;
  const double weight = step.weight;
  const double square = weight * weight;
  const double x = noise.squared_gradient;
  const double y = noise.trace;

  NoiseAverage next;
  next.steps = average.steps + 1;
  next.samples = average.samples + step.samples;
  next.weight = decay * average.weight + weight;
  next.squared_gradient = decay * average.squared_gradient + weight * x;
  next.trace = decay * average.trace + weight * y;
  next.square_weight = decay_of_squares * average.square_weight + square;
  next.fourth_weight = decay_of_squares * decay_of_squares * average.fourth_weight + square * square;
  next.square_squared_gradient = decay_of_squares * average.square_squared_gradient + square * x;
  next.square_trace = decay_of_squares * average.square_trace + square * y;
  next.squared_gradient_squared = decay_of_squares * average.squared_gradient_squared + square * x * x;
  next.trace_squared = decay_of_squares * average.trace_squared + square * y * y;
  next.product = decay_of_squares * average.product + square * x * y;
  return next;
}

// Half of the probability outside the interval is on either side.
constexpr double upper_probability = 0.975;

// The set of phi for which S - phi |G|^2 is within t standard errors of 0. The set solves
//   a phi^2 - 2 b phi + c <= 0,   a = |G|^4 - t^2 Var|G|^2,   b = S |G|^2 - t^2 Cov,   c = S^2 - t^2 Var S.
struct FiellerSet {
  double a, b, c;

  double root_of_discriminant() const { return std::sqrt(std::max(b * b - a * c, 0.0)); }
  bool has_zero() const { return c <= 0; }
  // Returns the smaller root where a > 0 and the larger one where a < 0, in a form without a pole at a = 0.
  double lower_end() const { return c / (b + root_of_discriminant()); }
  double upper_end() const { return (b + root_of_discriminant()) / a; }
};

double lower_bound(const FiellerSet& set, const MeanEstimate& trace) {
  if (set.has_zero() || trace.value <= 0) return 0;
  const double low = set.lower_end();
  return std::isfinite(low) ? low : 0;
}

}  // namespace

NoiseAverage observe(const NoiseAverage& average, const NormObservation& observation, const NoiseWindow& window) {
  return observe(average, observation, observation.large_batch, window);
}

NoiseAverage observe(const NoiseAverage& average, const NormObservation& observation, double samples,
                     const NoiseWindow& window) {
  const double weight = std::min(samples, window.samples / window.least_steps);
  const double growing = std::max(window.largest_share * (average.samples + weight), first_window_in_steps * weight);
  const double decay = std::exp(-weight / std::min(window.samples, growing));
  return add(average, decay, {weight, weight * outlier_weight(average, observation)}, observation);
}

NoiseAverage observe_alike(const NoiseAverage& average, const NormObservation& observation) {
  return add(average, 1, {1, 1}, observation);
}

// Estimates the variance of a weighted mean from the scatter of its terms: sum w^2 (x - mean)^2 / (sum w)^2. This is
// the "sandwich" form of White (1980), so the terms may have different variances. The mean is fitted to the same x,
// which makes the estimate too small by a factor of about 1 - sum w^2 / (sum w)^2; for equal weights this is (n - 1)/n.
std::optional<NoiseScale> noise_scale(const NoiseAverage& average) {
  if (average.steps < 2) return std::nullopt;
  const double x = average.squared_gradient / average.weight;
  const double y = average.trace / average.weight;
  const double denominator = average.weight * average.weight - average.square_weight;
  const auto covariance = [&](double sum_product, double sum_u, double mean_u, double sum_v, double mean_v) {
    return (sum_product - mean_u * sum_v - mean_v * sum_u + mean_u * mean_v * average.square_weight) / denominator;
  };
  const double sum_x = average.square_squared_gradient;
  const double sum_y = average.square_trace;
  const double variance_x = std::max(covariance(average.squared_gradient_squared, sum_x, x, sum_x, x), 0.0);
  const double variance_y = std::max(covariance(average.trace_squared, sum_y, y, sum_y, y), 0.0);
  const double covariance_xy = covariance(average.product, sum_x, x, sum_y, y);

  // The degrees of freedom of this variance estimate, by Satterthwaite (1946): 2 mean^2 / variance. Here this is (sum
  // w^2)^2 / sum w^4; one is subtracted because the mean is fitted. With exponential weights it is half the effective
  // number of steps, (sum w)^2 / sum w^2.
  const double degrees_of_freedom =
      std::max(average.square_weight * average.square_weight / average.fourth_weight - 1, 1.0);
  const double t = student_t_quantile(upper_probability, degrees_of_freedom);

  NoiseScale scale;
  scale.squared_gradient = {x, std::sqrt(variance_x)};
  scale.trace = {y, std::sqrt(variance_y)};
  // |G|^2 is never negative, so a negative estimate is set to 0. Otherwise the lower bound would grow without limit as
  // the estimate approaches -t standard errors.
  const double possible = std::max(x, 0.0);
  const FiellerSet set{possible * possible - t * t * variance_x, possible * y - t * t * covariance_xy,
                       y * y - t * t * variance_y};
  scale.low = lower_bound(set, scale.trace);
  if (x > 0 && set.a > 0) {  // |G|^2 is more than t standard errors above 0
    scale.value = std::max(y / x, 0.0);
    scale.high = std::max(set.upper_end(), 0.0);
  }
  return scale;
}

}  // namespace copus
