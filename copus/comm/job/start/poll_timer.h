// The time between two checks in a loop.
#pragma once

#include <chrono>
#include <utility>

namespace copus {

class PollTimer {
 public:
  // Returns the seconds since the previous call or, in the first call, since the construction.
  double next() {
    const auto now = std::chrono::steady_clock::now();
    return std::chrono::duration<double>(now - std::exchange(polled_at_, now)).count();
  }

 private:
  std::chrono::steady_clock::time_point polled_at_ = std::chrono::steady_clock::now();
};

}  // namespace copus
