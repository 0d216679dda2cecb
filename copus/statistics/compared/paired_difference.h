// How much two treatments differ that were tried on the same seeds, and how sure that is.
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
  // Smallest difference in size that as many pairs with the same spread would find with a probability of 80 %: that
  // is, whose 95 % interval would then leave out 0.
  std::optional<double> detectable;
};

// Compares ours[i] - reference[i], pair by pair; the two have one length, at least 1. With s the standard deviation of
// n differences, the interval is mean +- t(0.975, n - 1) s / sqrt(n), by Student's distribution, for differences that
// are normally distributed; the detectable one is (t(0.975, n - 1) + t(0.8, n - 1)) s / sqrt(n) (H. S. Bloom, "Minimum
// Detectable Effects", Evaluation Review 19, 1995).
PairedDifference paired_difference(std::span<const double> ours, std::span<const double> reference);

}  // namespace copus
