// The numbers that a setting or a part of a configuration may be.
#pragma once

#include <limits>
#include <string>

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

// "at least 1", "greater than 0", "at least 0 and less than 1".
template <class Number>
std::string describe(const Range<Number>& range) {
  const std::string low = concat(range.above_low ? "greater than " : "at least ", range.low);
  if (range.high == std::numeric_limits<Number>::max()) return low;
  return concat(low, " and ", range.below_high ? "less than " : "at most ", range.high);
}

}  // namespace copus
