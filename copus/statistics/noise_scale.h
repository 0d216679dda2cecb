// Estimates the gradient noise scale phi = tr(Sigma)/|G|^2 of a run, from averages of numerator and denominator over
// the latest samples, with an interval for the ratio. Values are per sample, so they stay valid when batch or layout
// change.
#pragma once

#include <cstdint>
#include <optional>

#include "copus/statistics/gradient_noise.h"

namespace copus {

// The window of the averages. It is in samples, so that it stays the same when the batch changes, but it spans at least
// `least_steps` observed steps. The window grows with the run, because the first gradients of a run are much longer
// than later ones: with a fixed window, the averages would need several windows to forget the first gradients.
struct NoiseWindow {
  double samples = 2048;  // a step's weight falls to 1/e after this many
  double least_steps = 32;
  double largest_share = 0.25;  // upper limit of the window as a share of the samples so far
  bool operator==(const NoiseWindow&) const = default;
};

// Exponentially weighted sums over steps: everything that a switch and a checkpoint have to keep. A step's weight is
// the number of samples that it represents, at most window.samples / window.least_steps.
struct NoiseAverage {
  int64_t steps = 0;
  double samples = 0;                      // sum of the samples that the steps stand for
  double weight = 0;                       // sum of w
  double squared_gradient = 0, trace = 0;  // sums of w x
  // Sums of w^2 times the powers of x give the errors of the averages; sums of w^4 give the errors of these errors.
  double square_weight = 0, fourth_weight = 0;
  double square_squared_gradient = 0, square_trace = 0;
  double squared_gradient_squared = 0, trace_squared = 0, product = 0;
  bool operator==(const NoiseAverage&) const = default;
};

// The possible values of a sum of NoiseAverage. Weights and counts are never negative.
enum class NoiseSum { never_negative, any };

// Calls visit(name, value, NoiseSum) for every member, with its name in JSON files.
template <class Average, class Visitor>
void visit_noise_average(Average& average, Visitor&& visit) {
  using enum NoiseSum;
  static_assert(sizeof(NoiseAverage) == 12 * sizeof(double), "as many members as are listed here");
  visit("steps", average.steps, never_negative);
  visit("samples", average.samples, never_negative);
  visit("weight", average.weight, never_negative);
  visit("squared_gradient", average.squared_gradient, any);
  visit("trace", average.trace, any);
  visit("square_weight", average.square_weight, never_negative);
  visit("fourth_weight", average.fourth_weight, never_negative);
  visit("square_squared_gradient", average.square_squared_gradient, any);
  visit("square_trace", average.square_trace, any);
  visit("squared_gradient_squared", average.squared_gradient_squared, any);
  visit("trace_squared", average.trace_squared, any);
  visit("product", average.product, any);
}

// Adds one step to the averages. If a norm is far above the average's expectation for its batch, the step gets a
// smaller weight, the same for both estimates. The weight is never 0, so that the average follows a lasting change. A
// step that is not finite is ignored and not counted in `steps`.
NoiseAverage observe(const NoiseAverage& average, const NormObservation& observation, const NoiseWindow& window);

// Adds one step of a run that does not observe every step. The step represents all `samples` consumed since the
// previously observed step, including its own samples, so that the window covers the same part of the run.
NoiseAverage observe(const NoiseAverage& average, const NormObservation& observation, double samples,
                     const NoiseWindow& window);

// Adds one step with a constant weight: every step has the same weight for ever, however unexpected its norms are.
NoiseAverage observe_alike(const NoiseAverage& average, const NormObservation& observation);

// A mean with its standard error.
struct MeanEstimate {
  double value = 0;
  double standard_error = 0;
};

struct NoiseScale {
  MeanEstimate squared_gradient, trace;
  // The noise scale and its interval, in samples, never negative. If |G|^2 is not significantly positive, there is only
  // a lower bound, and value and high are empty. The bound holds with a probability above 95 %, because it also uses
  // |G|^2 >= 0.
  std::optional<double> value;
  double low = 0;  // ends of the 95 % interval (Fieller 1954, for a ratio of two correlated means)
  std::optional<double> high;
};

// Estimates the noise scale. Empty with fewer than two observed steps. The errors come from the scatter of the steps,
// so they include any drift inside the window, and they hold for steps of any batch.
std::optional<NoiseScale> noise_scale(const NoiseAverage& average);

}  // namespace copus
