// Time that a command has taken so far.
#pragma once

#include <chrono>

namespace copus {

inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace copus
