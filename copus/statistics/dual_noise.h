// Gradient noise scales in the norms that belong to an optimizer's steps (arXiv 2602.03001). A step of sign descent has
// elements of bounded size, and a step of Muon has bounded singular values. The gain of such a step depends on the dual
// norm of the gradient: the sum of absolute elements, or the sum of singular values. The noise scale in a dual norm is
// the batch in which the mean gradient's noise has the same dual norm as the gradient itself:
//   B = (E|g_1 - G|* / |G|*)^2, with the gradient g_1 of one sample and G = E g_1.
#pragma once

#include <cstdint>
#include <optional>

namespace copus {

// What one step measures, in one norm. The step compares the gradient g of `batch` of its samples with the gradient m
// of its other samples, at the same weights.
struct DualObservation {
  double noise = 0;          // |g - m|*
  double signal = 0;         // <g, d>, where d is the step of unit size along m
  double batch = 0;          // samples
  double mean_variance = 0;  // the variance of m / the variance of g: `batch` over the number of other samples
};

// Weighted sums over observations: of |g_1 - G|*, of the signal, and of m's own noise |m - G|*.
struct DualNoiseAverage {
  double weight = 0, square_weight = 0;
  double noise = 0, signal = 0, mean_noise = 0;
  double noise_squared = 0, signal_squared = 0, product = 0;
  bool operator==(const DualNoiseAverage&) const = default;
};

// Calls visit(name, value) for every member, with its name in JSON files.
template <class Average, class Visitor>
void visit_dual_noise_average(Average& average, Visitor&& visit) {
  static_assert(sizeof(DualNoiseAverage) == 8 * sizeof(double), "as many members as are listed here");
  visit("weight", average.weight);
  visit("square_weight", average.square_weight);
  visit("noise", average.noise);
  visit("signal", average.signal);
  visit("mean_noise", average.mean_noise);
  visit("noise_squared", average.noise_squared);
  visit("signal_squared", average.signal_squared);
  visit("product", average.product);
}

// Adds an observation. The weight of an earlier one falls to 1/e after 32 observations. Ignores an observation that is
// not finite.
DualNoiseAverage observe(const DualNoiseAverage& average, const DualObservation& observation);

// A noise scale in samples, with its 95 % interval. While the signal is not significant there is only a lower end.
struct DualNoiseScale {
  std::optional<double> value;
  double low = 0;
  std::optional<double> high;
};

// Estimates the noise scale. Empty before the second observation. The signal <g, d>, with the unit step d along m, is
// less than the dual norm |G|*, because m is noisy. If G and the noise of m are independent and normal, with the same
// distribution over elements or singular directions, then E<g, d> = |G|*^2 / sqrt(|G|*^2 + |m - G|*^2). This is solved
// for |G|*. The interval follows from the scatter of the observations, by the delta method for the logarithm of the
// ratio.
std::optional<DualNoiseScale> dual_noise_scale(const DualNoiseAverage& average);

}  // namespace copus
