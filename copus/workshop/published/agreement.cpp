#include "copus/workshop/published/agreement.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "copus/base/error.h"
#include "copus/base/numbers/quantile.h"

namespace copus {

namespace {

constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

int sign(double value) { return value > 0 ? 1 : value < 0 ? -1 : 0; }

}  // namespace

double kendall_tau(std::span<const double> a, std::span<const double> b) {
  COPUS_CHECK(a.size() == b.size());
  double agreeing = 0, untied_in_a = 0, untied_in_b = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      const int order_in_a = sign(a[i] - a[j]), order_in_b = sign(b[i] - b[j]);
      agreeing += order_in_a * order_in_b;
      untied_in_a += order_in_a != 0;
      untied_in_b += order_in_b != 0;
    }
  }
  return untied_in_a > 0 && untied_in_b > 0 ? agreeing / std::sqrt(untied_in_a * untied_in_b) : not_a_number;
}

double top1_regret(std::span<const double> predicted_throughput, std::span<const double> measured_throughput) {
  COPUS_CHECK(predicted_throughput.size() == measured_throughput.size() && !predicted_throughput.empty());
  const auto chosen = std::max_element(predicted_throughput.begin(), predicted_throughput.end());
  const double best = *std::max_element(measured_throughput.begin(), measured_throughput.end());
  return 1 - measured_throughput[static_cast<size_t>(chosen - predicted_throughput.begin())] / best;
}

double median_of(std::vector<double> values) {
  return values.empty() ? not_a_number : quantile(std::move(values), 0.5);
}

double corrected_seconds(const FittedConstants& constants, const StepTimeParts& parts) {
  return constants.compute * (parts.compute + parts.bubble + parts.optimizer) +
         constants.communication * (parts.tensor_communication + parts.data_communication);
}

FittedConstants fit_constants(std::span<const FitSample> samples) {
  // A weak pull towards 1 that decides between constants that fit equally well. It is weaker than any sample's error.
  constexpr double pull_towards_one = 1e-3;
  // A larger error is assumed to have a different cause; the excess counts only a tenth.
  const double far_off = std::log(1.5);
  const auto error_of = [&](const FittedConstants& constants) {
    double error = 0, weight = 0;
    for (const FitSample& sample : samples) {
      const double deviation = std::log(corrected_seconds(constants, sample.parts) / sample.measured_seconds);
      const double distance = std::abs(deviation), beyond = std::max(0.0, distance - far_off);
      error += sample.weight * (distance - 0.9 * beyond);
      weight += sample.weight;
    }
    return error / std::max(weight, 1e-300) +
           pull_towards_one * (std::abs(std::log(constants.compute)) + std::abs(std::log(constants.communication)));
  };

  // The objective is not smooth, so grids of logarithms are searched and refined around the best point.
  FittedConstants best;
  if (samples.empty()) return best;
  constexpr double range = 4;
  constexpr int steps = 20;
  double width = std::log(range);
  while (width > 1e-4) {
    const FittedConstants centre = best;
    double least = error_of(best);
    for (int i = -steps; i <= steps; ++i) {
      for (int j = -steps; j <= steps; ++j) {
        const FittedConstants tried{std::clamp(centre.compute * std::exp(width * i / steps), 1 / range, range),
                                    std::clamp(centre.communication * std::exp(width * j / steps), 1 / range, range)};
        const double error = error_of(tried);
        if (error < least) {
          least = error;
          best = tried;
        }
      }
    }
    width /= 4;
  }
  return best;
}

}  // namespace copus
