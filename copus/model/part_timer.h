// Where a step's time goes, for `copus bench step`: seconds by kind of kernel, summed while a PartTimes is active.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>

namespace copus {

enum class Part : size_t { matmul, attention, elementwise, optimizer };
inline constexpr size_t num_parts = 4;

// While it lives, times kernels that the constructing thread calls. Kernels must be synchronous to be timed (CPU).
class PartTimes {
 public:
  PartTimes();
  ~PartTimes();
  PartTimes(const PartTimes&) = delete;
  PartTimes& operator=(const PartTimes&) = delete;

  double seconds(Part part) const { return seconds_[static_cast<size_t>(part)]; }

 private:
  friend class PartTimer;
  std::array<double, num_parts> seconds_{};
};

// Adds its life time to the active PartTimes. Nested timers count once, for the outermost.
class PartTimer {
 public:
  explicit PartTimer(Part part);
  ~PartTimer();
  PartTimer(const PartTimer&) = delete;
  PartTimer& operator=(const PartTimer&) = delete;

 private:
  Part part_;
  bool counting_;
  std::chrono::steady_clock::time_point start_;
};

}  // namespace copus
