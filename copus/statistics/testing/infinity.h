// For tests: a batch or a noise scale without limit.
#pragma once

#include <limits>

namespace copus {

inline constexpr double infinity = std::numeric_limits<double>::infinity();

}  // namespace copus
