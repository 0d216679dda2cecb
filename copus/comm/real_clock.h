// The machine's monotonic clock, which all its processes share.
#pragma once

#include <chrono>

#include "copus/comm/rank_clock.h"

namespace copus {

class RealClock : public RankClock {
 public:
  // `start`: when the job began.
  explicit RealClock(std::chrono::steady_clock::time_point start) : start_(start) {}

  double now() override;
  void advance_to(double seconds) override;
  void charge(double /*flops*/) override {}
  void begin_communication() override {}
  void end_communication() override {}

 private:
  const std::chrono::steady_clock::time_point start_;
};

}  // namespace copus
