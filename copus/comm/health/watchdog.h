// A rank's watchdog: a thread that sends heartbeats, monitors the other ranks, and ends this process if the job has
// failed and the rank does not end by itself. If the job continues without the failed rank, the launcher instead ends
// ranks that do not notice the failure, because only the launcher learns when all other ranks are ready.
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>

#include "copus/comm/health/rank_monitor.h"

namespace copus {

enum class AfterFailure { end_process, leave_it_to_the_launcher };

class Watchdog {
 public:
  // Runs while it lives. `health` is that of this rank and outlives it. The thread receives no signals.
  explicit Watchdog(SharedHealth& health, HealthLimits limits = {},
                    AfterFailure after_failure = AfterFailure::end_process);
  // The rank leaves. If an exception ends it, the other ranks learn that it has failed.
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
