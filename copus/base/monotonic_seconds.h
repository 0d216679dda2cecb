// The clock of measurements, and of limits that hold on one machine.
#pragma once

#include <chrono>

namespace copus {

// Seconds since some moment that is the same for all processes of this machine; never set back.
inline double monotonic_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace copus
