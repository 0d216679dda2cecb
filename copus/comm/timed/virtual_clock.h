// The clock of a rank on an imagined machine. It advances by the rank's computing and its waiting.
#pragma once

#include "copus/comm/rank_clock.h"

namespace copus {

class VirtualClock : public RankClock {
 public:
  // Starts at 0. Computing takes the charged operations divided by `flops_per_second` or, if that is 0, the CPU time of
  // this thread.
  explicit VirtualClock(double flops_per_second);

  double now() override;
  void advance_to(double seconds) override;
  void charge(double flops) override;
  // Calls may be nested.
  void begin_communication() override;
  void end_communication() override;

 private:
  bool is_measured() const { return flops_per_second_ == 0; }
  // Adds the computing since the last call.
  void catch_up();

  const double flops_per_second_;
  double seconds_ = 0;
  double thread_seconds_;  // the thread's time at the last call
  int communications_ = 0;
};

}  // namespace copus
