// Decides whether a rank has failed: its process is gone or stopped, it sends no heartbeats, it makes no progress, or
// all ranks wait for one another.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "copus/comm/health/process_state.h"
#include "copus/comm/health/shared_health.h"

namespace copus {

struct HealthLimits {
  double silence_seconds = 3;  // without a heartbeat, for a process that is not waiting for a processor
  double stopped_seconds = 2;  // without a heartbeat, for a process that is stopped according to the kernel
  double stall_seconds = 10;   // without progress; at least ten expected steps
};

class RankMonitor {
 public:
  // A parent learns from the kernel when a process ends, and also monitors processes that have not joined yet.
  enum class Role { rank, parent };

  RankMonitor(const SharedHealth& health, Role role, HealthLimits limits = {},
              std::function<ProcessState(int64_t pid)> state_of_process = process_state,
              std::function<bool(int64_t pid)> is_runnable = has_runnable_thread);

  // Checks all ranks. `seconds` is the time since the previous check. At most half a second of it counts, because after
  // a longer gap the checking process itself was stopped, perhaps with the whole job. The ranks' silence then means
  // nothing.
  std::optional<FailureReport> look(double seconds);

  // Stops monitoring a rank whose process has ended.
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
