// An infinite batch or noise scale, for tests.
#pragma once

#include <limits>

namespace copus {

inline constexpr double infinity = std::numeric_limits<double>::infinity();

}  // namespace copus
