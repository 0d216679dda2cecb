// A rank's watchdog: a thread that sends heartbeats, looks after the other ranks, and ends this process when the job
// has failed and the rank does not end by itself. Where the job goes on without the rank that has failed, ending those
// that do not notice is left to the launcher, which knows when all others are ready.
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>

#include "copus/comm/health/rank_monitor.h"

namespace copus {

enum class AfterFailure { end_process, leave_it_to_the_launcher };

class Watchdog {
 public:
  // Watches while it lives. `health`, which is that of this rank, outlives it. Signals are left to other threads.
  explicit Watchdog(SharedHealth& health, HealthLimits limits = {},
                    AfterFailure after_failure = AfterFailure::end_process);
  // The rank leaves. If an exception is what ends it, the others learn that it has failed.
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
