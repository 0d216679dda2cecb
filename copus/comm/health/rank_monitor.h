// Judges from the signs that ranks show whether one of them has failed: its process is gone or stopped, it sends no
// heartbeats, it makes no progress, or all wait for one another.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "copus/comm/health/process_state.h"
#include "copus/comm/health/shared_health.h"

namespace copus {

struct HealthLimits {
  double silence_seconds = 3;  // without a heartbeat, of a process that nothing keeps from a processor
  double stopped_seconds = 2;  // without a heartbeat, of a process that the kernel says is stopped
  double stall_seconds = 10;   // without progress, which also has to last for ten expected steps
};

class RankMonitor {
 public:
  // A parent learns from the kernel when a process ends, and knows the processes that have not yet joined.
  enum class Role { rank, parent };

  RankMonitor(const SharedHealth& health, Role role, HealthLimits limits = {},
              std::function<ProcessState(int64_t pid)> state_of_process = process_state,
              std::function<bool(int64_t pid)> is_runnable = has_runnable_thread);

  // Looks at all ranks, `seconds` after the look before. At most half a second of them counts: if whoever looks was
  // itself stopped for longer, perhaps with the whole job, then silence meanwhile says nothing.
  std::optional<FailureReport> look(double seconds);

  // Stops looking at a rank, whose process has ended.
  void forget(int64_t rank) { seen_[rank].forgotten = true; }

 private:
  struct Seen {
    bool forgotten = false;
    uint64_t heartbeats = 0;
    uint64_t progress = 0;
    double silent_seconds = 0;
    double idle_seconds = 0;
  };

  std::optional<std::string> judge_process(int64_t rank, const RankSigns& signs, double seconds, Seen* seen) const;
  std::optional<std::string> judge_progress(const RankSigns& signs, double seconds, Seen* seen) const;

  const SharedHealth& health_;
  const Role role_;
  const HealthLimits limits_;
  const std::function<ProcessState(int64_t)> state_of_process_;
  const std::function<bool(int64_t)> is_runnable_;
  std::vector<Seen> seen_;
  double all_waiting_seconds_ = 0;
};

}  // namespace copus
