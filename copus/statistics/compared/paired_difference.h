// Estimates how much two treatments differ that were tried on the same seeds, with the uncertainty.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

namespace copus {

struct PairedDifference {
  int64_t pairs = 0;
  double mean = 0;
  // Empty with one pair, which shows no spread.
  std::optional<double> standard_deviation;  // of the differences
  std::optional<double> low, high;           // ends of the 95 % interval of the mean
  // The smallest absolute difference that would be detected with a probability of 80 % by this number of pairs with the
  // same spread. A difference is detected if the 95 % interval excludes 0.
  std::optional<double> detectable;
};

// Compares ours[i] - reference[i], pair by pair. Both lists have the same length, at least 1. Let s be the standard
// deviation of the n differences. For normally distributed differences the interval is mean +- t(0.975, n - 1) s /
// sqrt(n), by Student's distribution. The detectable difference is (t(0.975, n - 1) + t(0.8, n - 1)) s / sqrt(n) (H. S.
// Bloom, "Minimum Detectable Effects", Evaluation Review 19, 1995).
PairedDifference paired_difference(std::span<const double> ours, std::span<const double> reference);

}  // namespace copus
