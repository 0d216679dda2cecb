// Requests to end a run early: by Ctrl-C, by a scheduler's signals, or by a limit on the wall clock.
#pragma once

#include <chrono>
#include <vector>

namespace copus {

// Reasons to stop. A run that pauses stands still and does not end, nor does one whose ranks leave a step together to
// let others come or go, or to write a checkpoint that nobody could foresee.
enum class StopReason { none, interrupt, terminate, time_limit, pause, regroup, checkpoint };

// Notes the stop signals (copus/base/stop_signals.h) while it lives, instead of letting them end the process, so that a
// run can finish its step and write a checkpoint. A second SIGINT or SIGTERM ends the process at once, within a step
// too: a SIGTERM a second after the first one or later, since launchers and schedulers may both send it. There is one
// of these at a time.
class StopRequest {
 public:
  // `max_seconds`: of wall clock since `start`; 0: no limit. To be made when this process has set itself up: its end is
  // expected to take as long, since it runs as slowly.
  explicit StopRequest(double max_seconds,
                       std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now());
  ~StopRequest();
  StopRequest(const StopRequest&) = delete;
  StopRequest& operator=(const StopRequest&) = delete;

  // Says whether the user is told on stdout, as soon as a signal comes, what it does. To be called after one is
  // made, since that silences it.
  static void tell_user(bool tells);

  // Returns the reason to stop. The time limit counts as reached when less is left of it than `reserve_seconds` and the
  // end of the process take.
  StopReason reason(double reserve_seconds) const;

  // Seconds that the end of the process is expected to take.
  double seconds_to_end() const { return seconds_to_end_; }
  // Tells whether the process can do what takes so many seconds and still end within the time limit.
  bool has_time_for(double seconds) const;

 private:
  std::vector<int> signals_;
  std::chrono::steady_clock::time_point start_;
  double max_seconds_;
  double seconds_to_end_;
};

}  // namespace copus
