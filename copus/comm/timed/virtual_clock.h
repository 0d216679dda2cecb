// The clock of a rank on a machine that does not exist. It advances by the rank's computing and by what it waits for.
#pragma once

#include "copus/comm/rank_clock.h"

namespace copus {

class VirtualClock : public RankClock {
 public:
  // Begins at 0. Computing counts as it is charged, at this rate; at a rate of 0, as the time that this thread is on a
  // processor.
  explicit VirtualClock(double flops_per_second);

  double now() override;
  void advance_to(double seconds) override;
  void charge(double flops) override;
  // May be nested.
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
