// Requests to end a run early: by Ctrl-C, by a scheduler's signals, or by a limit on the wall clock.
#pragma once

#include <chrono>
#include <vector>

namespace copus {

// Reasons to stop. `pause`, `regroup`, `checkpoint` and `calibrate` do not end the run. All ranks leave the step
// together, to pause, to let ranks join or leave, to write a checkpoint that was not scheduled, or to train branches.
enum class StopReason { none, interrupt, terminate, time_limit, pause, regroup, checkpoint, calibrate };

// Catches the stop signals (copus/base/process/stop_signals.h) as long as an object exists, so that a run can finish
// its step and write a checkpoint instead of being killed. A second SIGINT or SIGTERM ends the process at once, even
// within a step. A second SIGTERM counts only if it comes at least one second after the first, since launchers and
// schedulers may both send one. At most one object of this class exists at a time.
class StopRequest {
 public:
  // `max_seconds` limits the wall-clock time since `start`; 0: no limit. Construct the object when this process has set
  // itself up: the time that this took serves as an estimate of the time that the end of the process will take.
  explicit StopRequest(double max_seconds,
                       std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now());
  ~StopRequest();
  StopRequest(const StopRequest&) = delete;
  StopRequest& operator=(const StopRequest&) = delete;

  // Sets whether a signal is acknowledged to the user on stdout at once, with its effect. Call it after construction,
  // which turns this off.
  static void tell_user(bool tells);

  // Returns the reason to stop. The time limit is reached when the remaining time is shorter than `reserve_seconds`
  // plus the time that the process needs to end.
  StopReason reason(double reserve_seconds) const;

  // Expected duration in seconds of the end of the process.
  double seconds_to_end() const { return seconds_to_end_; }
  // Whether the process can spend `seconds` on a task and still end within the time limit.
  bool has_time_for(double seconds) const;

 private:
  std::vector<int> signals_;
  std::chrono::steady_clock::time_point start_;
  double max_seconds_;
  double seconds_to_end_;
};

}  // namespace copus
