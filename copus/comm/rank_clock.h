// The clock of a rank's step times, timeline and log: the real clock, the real clock with delayed messages, or a
// virtual clock. On a virtual clock 16 ranks on 2 cores have the step times of 16 devices.
#pragma once

#include <chrono>

namespace copus {

// Used only by the rank's main thread.
class RankClock {
 public:
  virtual ~RankClock() = default;

  // Returns the seconds since the job began; values of different ranks are comparable. A virtual clock first advances
  // by the time that was computed since the previous call: the CPU time of the thread, or the time added by charge().
  virtual double now() = 0;

  // Waits until the clock shows `seconds`, the time at which the event that this rank waited for has ended. A virtual
  // clock jumps to `seconds` unless it is already later. A real clock sleeps.
  virtual void advance_to(double seconds) = 0;

  // Adds `flops` of computing since the previous call. Only virtual clocks with modelled computing use this number.
  virtual void charge(double flops) = 0;

  // Between these two calls the thread communicates or waits, and its CPU time does not count as computing.
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
