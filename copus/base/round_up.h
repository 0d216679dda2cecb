// Sizes that must be whole multiples of a unit.
#pragma once

#include <cstdint>

namespace copus {

// The least multiple of `unit` (above 0) that is not below `value` (not negative).
constexpr int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace copus
