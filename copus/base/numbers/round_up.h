// Sizes that must be whole multiples of a unit.
#pragma once

#include <cstdint>

namespace copus {

// The smallest multiple of `unit` (positive) that is at least `value` (not negative).
constexpr int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace copus
