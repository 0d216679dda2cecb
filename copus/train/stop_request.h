// Asks a run to end early: by Ctrl-C, by a scheduler's SIGTERM, or by a limit on the wall clock.
#pragma once

#include <chrono>

namespace copus {

// A run that pauses stands still and ends nothing.
enum class StopReason { none, interrupt, terminate, time_limit, pause };

// While it lives, SIGINT and SIGTERM are noted instead of ending the process, so that a run can finish its step and
// write a checkpoint. A second SIGINT ends the process at once. One at a time.
class StopRequest {
 public:
  // max_seconds: of wall clock since `start`; 0: no limit.
  explicit StopRequest(double max_seconds,
                       std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now());
  ~StopRequest();
  StopRequest(const StopRequest&) = delete;
  StopRequest& operator=(const StopRequest&) = delete;

  // Why to stop. The time limit counts as reached when less than `reserve_seconds` of it are left.
  StopReason reason(double reserve_seconds) const;

 private:
  std::chrono::steady_clock::time_point start_;
  double max_seconds_;
};

}  // namespace copus
