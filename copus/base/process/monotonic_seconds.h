// The clock for measurements, and for time limits within one machine.
#pragma once

#include <chrono>

namespace copus {

// Seconds since a moment that is the same for all processes of this machine. The clock is never set back.
inline double monotonic_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace copus
