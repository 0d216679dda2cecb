// Quantiles: the middle of measurements and how far they spread.
#pragma once

#include <vector>

namespace copus {

// Returns the value that a `share` (0 .. 1) of the values does not exceed, interpolated between neighbours; there must
// be at least one value.
double quantile(std::vector<double> values, double share);

struct Quartiles {
  double lower, median, upper;
};
Quartiles quartiles(const std::vector<double>& values);

}  // namespace copus
