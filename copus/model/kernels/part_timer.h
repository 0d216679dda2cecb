// Measures the seconds of a step by kind of kernel, for `copus bench step`, while a PartTimes is active.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <optional>
#include <vector>

namespace copus {

enum class Part : size_t { matmul, attention, elementwise, optimizer };
inline constexpr size_t num_parts = 4;

// Times the kernels that the constructing thread calls during this object's lifetime. Reads the host's clock on a CPU,
// and records events before and after each kernel on a GPU's current stream, so that the host can run ahead.
class PartTimes {
 public:
  explicit PartTimes(at::Device device);
  ~PartTimes();
  PartTimes(const PartTimes&) = delete;
  PartTimes& operator=(const PartTimes&) = delete;

  // Returns the seconds so far. On a GPU, call kernels::synchronize first.
  double seconds(Part part) const;

 private:
  friend class PartTimer;
  struct Span {
    Part part;
    c10::Event begin, end;
  };
  c10::Event record() const;

  at::Device device_;
  std::array<double, num_parts> seconds_{};
  std::vector<Span> spans_;
};

// Adds the time of its lifetime to the active PartTimes. Of nested timers only the outermost one counts.
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
  std::optional<c10::Event> begin_;  // only on a GPU
};

}  // namespace copus
