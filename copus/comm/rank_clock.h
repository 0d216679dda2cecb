// The clock that a rank's step times, timeline and log are read from: the real one, the real one with messages that
// arrive late, or a virtual one on which 16 ranks on 2 cores have the step times that 16 devices would have.
#pragma once

#include <chrono>

namespace copus {

// Used by the rank's main thread alone.
class RankClock {
 public:
  virtual ~RankClock() = default;

  // Seconds since the job began, comparable between ranks. A virtual clock has advanced by the computing done since the
  // last call: the thread's measured time, or what charge() added.
  virtual double now() = 0;

  // Tells when something that this rank waited for has ended. A virtual clock moves there unless it is later already; a
  // real one sleeps until then.
  virtual void advance_to(double seconds) = 0;

  // Tells that `flops` of computing were done since the last call. Only a virtual clock with modelled computing counts
  // them.
  virtual void charge(double flops) = 0;

  // Between these two the thread communicates or waits, and its own time is not computing.
  virtual void begin_communication() = 0;
  virtual void end_communication() = 0;
};

// The machine's monotonic clock, which all its processes share.
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
