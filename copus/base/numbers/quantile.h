// Quantiles: the median of measurements and their spread.
#pragma once

#include <vector>

namespace copus {

// Returns the quantile at `share` (0 .. 1), interpolated between neighbours. `values` must not be empty.
double quantile(std::vector<double> values, double share);

struct Quartiles {
  double lower, median, upper;
};
Quartiles quartiles(const std::vector<double>& values);

}  // namespace copus
