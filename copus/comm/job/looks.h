// The time between two looks of a loop.
#pragma once

#include <chrono>
#include <utility>

namespace copus {

class Looks {
 public:
  // The seconds since the call before, at first since the beginning.
  double next() {
    const auto now = std::chrono::steady_clock::now();
    return std::chrono::duration<double>(now - std::exchange(looked_, now)).count();
  }

 private:
  std::chrono::steady_clock::time_point looked_ = std::chrono::steady_clock::now();
};

}  // namespace copus
