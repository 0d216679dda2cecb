// The allowed range of a setting or of a part of a configuration.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "copus/base/error.h"

namespace copus {

template <class Number>
struct Range {
  Number low;
  Number high = std::numeric_limits<Number>::max();
  bool above_low = false;   // low itself is excluded
  bool below_high = false;  // high itself is excluded

  bool contains(Number value) const {
    return (above_low ? value > low : value >= low) && (below_high ? value < high : value <= high);
  }
};

// Magnitudes far from the ends of single precision's range.
inline constexpr Range<double> single_precision{1e-30, 1e30};

// Puts a range into words: "at least 1", "greater than 0", "at least 0 and less than 1".
template <class Number>
std::string describe(const Range<Number>& range) {
  std::string low = concat(range.above_low ? "greater than " : "at least ", range.low);
  if (range.high == std::numeric_limits<Number>::max()) return low;
  return concat(low, " and ", range.below_high ? "less than " : "at most ", range.high);
}

// Returns the numbers in `range` that surround a gap and that `works` accepts: the largest of at most `below`, and the
// smallest of at least `above`. Either may be missing.
template <class Works>
std::vector<int64_t> nearest_that_work(int64_t below, int64_t above, const Range<int64_t>& range, const Works& works) {
  std::vector<int64_t> found;
  for (below = std::min(below, range.high); below >= range.low; --below) {
    if (!works(below)) continue;
    found.push_back(below);
    break;
  }
  for (above = std::max(above, range.low); above <= range.high; ++above) {
    if (!works(above)) continue;
    found.push_back(above);
    break;
  }
  return found;
}

}  // namespace copus
