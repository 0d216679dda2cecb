// The middle of measurements and how far they spread.
#pragma once

#include <vector>

namespace copus {

// The value that `share` (0 .. 1) of the values, one at least, do not exceed, interpolated between neighbours.
double quantile(std::vector<double> values, double share);

struct Quartiles {
  double lower, median, upper;
};
Quartiles quartiles(const std::vector<double>& values);

}  // namespace copus
