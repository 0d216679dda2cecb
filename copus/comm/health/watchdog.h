// A rank's watchdog: a thread that sends heartbeats and monitors the other ranks. If the job has failed and the rank
// does not end by itself, the watchdog ends this process. In a job that continues without failed ranks, the launcher
// ends the process instead, because only the launcher learns when all other ranks are ready.
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>

#include "copus/comm/health/rank_monitor.h"

namespace copus {

enum class AfterFailure { end_process, leave_it_to_the_launcher };

class Watchdog {
 public:
  // Monitors while this object lives. `health` belongs to this rank and must outlive this object. The thread receives
  // no signals.
  explicit Watchdog(SharedHealth& health, HealthLimits limits = {},
                    AfterFailure after_failure = AfterFailure::end_process);
  // Records that the rank leaves. If an exception unwinds the stack, the other ranks learn that this rank has failed.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  void watch();

  SharedHealth& health_;
  const AfterFailure after_failure_;
  const int exceptions_before_;
  RankMonitor monitor_;
  std::mutex mutex_;
  std::condition_variable stopping_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace copus
