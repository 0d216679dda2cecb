#include "copus/statistics/dual_noise.h"

#include <algorithm>
#include <cmath>

namespace copus {

namespace {

constexpr double window = 32;       // observations
constexpr double two_sided = 1.96;  // standard deviations of a 95 % interval

double square(double value) { return value * value; }

// Solves signal = x^2 / sqrt(x^2 + mean_noise^2) for x.
double gradient_norm(double signal, double mean_noise) {
  const double square_signal = square(signal);
  return std::sqrt((square_signal + std::sqrt(square(square_signal) + 4 * square_signal * square(mean_noise))) / 2);
}

}  // namespace

DualNoiseAverage observe(const DualNoiseAverage& average, const DualObservation& observation) {
  const double one = observation.noise / std::sqrt(1 + observation.mean_variance);  // the noise of g alone
  const double noise = one * std::sqrt(observation.batch), signal = observation.signal;
  if (!std::isfinite(noise) || !std::isfinite(signal)) return average;
  static const double kept = std::exp(-1 / window);
  return {.weight = kept * average.weight + 1,
          .square_weight = kept * kept * average.square_weight + 1,
          .noise = kept * average.noise + noise,
          .signal = kept * average.signal + signal,
          .mean_noise = kept * average.mean_noise + one * std::sqrt(observation.mean_variance),
          .noise_squared = kept * average.noise_squared + square(noise),
          .signal_squared = kept * average.signal_squared + square(signal),
          .product = kept * average.product + noise * signal};
}

std::optional<DualNoiseScale> dual_noise_scale(const DualNoiseAverage& average) {
  if (average.weight <= 1) return std::nullopt;
  const double noise = average.noise / average.weight, signal = average.signal / average.weight;
  const double mean_noise = average.mean_noise / average.weight;
  // Variances and covariance of the two means, from the scatter of the observations.
  const double observations = square(average.weight) / average.square_weight;
  const double scale = 1 / (average.weight * (observations - 1));
  const double noise_variance = std::max(0.0, average.noise_squared - average.weight * square(noise)) * scale;
  const double signal_variance = std::max(0.0, average.signal_squared - average.weight * square(signal)) * scale;
  const double covariance = (average.product - average.weight * noise * signal) * scale;
  const double error = two_sided * std::sqrt(signal_variance);
  if (noise <= 0 || signal + error <= 0) return std::nullopt;
  const auto scale_with = [&](double s) { return square(noise / gradient_norm(s, mean_noise)); };
  if (signal - error <= 0) {
    return DualNoiseScale{.value = std::nullopt, .low = scale_with(signal + error), .high = std::nullopt};
  }
  // `slope` is the derivative of ln(noise / |G|*) with respect to ln noise, where mean_noise is proportional to noise.
  // The derivative with respect to ln signal is -slope. slope is 1 if the mean gradient has no noise, and 1/2 if it is
  // mostly noise.
  const double ratio = square(mean_noise / gradient_norm(signal, mean_noise));
  const double slope = (1 + ratio) / (1 + 2 * ratio);
  const double variance = square(slope) * (noise_variance / square(noise) + signal_variance / square(signal) -
                                           2 * covariance / (noise * signal));
  const double value = scale_with(signal), factor = std::exp(2 * two_sided * std::sqrt(std::max(0.0, variance)));
  return DualNoiseScale{.value = value, .low = value / factor, .high = value * factor};
}

}  // namespace copus
