// Requests to end a run early: Ctrl-C, a scheduler's signals, or a limit on wall-clock time.
#pragma once

#include <chrono>
#include <functional>
#include <vector>

namespace copus {

// Reasons to stop. `pause`, `regroup`, `checkpoint` and `calibrate` do not end the run: all ranks leave the step loop
// together to pause, to let ranks join or leave, to write an unscheduled checkpoint, or to train branches.
enum class StopReason { none, interrupt, terminate, time_limit, pause, regroup, checkpoint, calibrate };

// Returns the reason to stop, if any. Every rank is asked, but only rank 0 and ranks that received a signal have a say
// (agree_on_stop).
using StopQuestion = std::function<StopReason()>;

// Catches stop signals (copus/base/process/stop_signals.h) during its lifetime, so that a run can finish its step and
// write a checkpoint. A second SIGINT or SIGTERM ends the process at once, even within a step. A second SIGTERM counts
// only at least one second after the first, because launchers and schedulers may both send one. If a signal was caught,
// later ones have no effect after the object's lifetime either, so that the process ends with the exit code of a
// stopped run. At most one object may exist at a time.
class StopRequest {
 public:
  // `max_seconds` limits wall-clock time since `start`; 0: no limit. Construct the object once this process is set up:
  // the time that the set-up took is used as the estimate for the end of the process.
  explicit StopRequest(double max_seconds,
                       std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now());
  ~StopRequest();
  StopRequest(const StopRequest&) = delete;
  StopRequest& operator=(const StopRequest&) = delete;

  // Sets whether a signal and its effect are reported on stdout at once. The constructor turns this off.
  static void tell_user(bool tells);

  // Returns the reason to stop. The time limit is reached when the remaining time is less than `reserve_seconds` plus
  // the estimated time to end the process.
  StopReason reason(double reserve_seconds) const;

  // Returns the seconds that the process needs to end.
  double seconds_to_end() const { return seconds_to_end_; }
  // Returns whether the process can spend `seconds` and still end within the time limit.
  bool has_time_for(double seconds) const;

 private:
  std::vector<int> signals_;
  std::chrono::steady_clock::time_point start_;
  double max_seconds_;
  double seconds_to_end_;
};

}  // namespace copus
