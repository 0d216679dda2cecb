#include "copus/comm/health/watchdog.h"

#include <unistd.h>

#include <chrono>
#include <exception>
#include <optional>

#include "copus/comm/background_thread.h"

namespace copus {

namespace {

using Clock = std::chrono::steady_clock;
constexpr auto interval = std::chrono::milliseconds(100);
// The time for the main thread to notice a failure, throw, and clean up.
constexpr auto grace = std::chrono::seconds(1);
constexpr int exit_code_of_failure = 1;

}  // namespace

Watchdog::Watchdog(SharedHealth& health, HealthLimits limits, AfterFailure after_failure)
    : health_(health),
      after_failure_(after_failure),
      exceptions_before_(std::uncaught_exceptions()),
      monitor_(health, RankMonitor::Role::rank, limits) {
  health_.beat();
  thread_ = background_thread([this] { watch(); });
}

Watchdog::~Watchdog() {
  {
    const std::scoped_lock lock(mutex_);
    stop_ = true;
  }
  stopping_.notify_one();
  thread_.join();
  if (std::uncaught_exceptions() > exceptions_before_) health_.report_own_error();
  health_.leave();
}

void Watchdog::watch() {
  auto looked = Clock::now();
  std::optional<Clock::time_point> failed_at;
  std::unique_lock lock(mutex_);
  while (!stopping_.wait_for(lock, interval, [this] { return stop_; })) {
    health_.beat();
    const auto now = Clock::now();
    if (!failed_at) {
      if (const auto report = monitor_.look(std::chrono::duration<double>(now - looked).count())) {
        health_.report(*report);
      }
      if (health_.failure()) failed_at = now;
    } else if (after_failure_ == AfterFailure::end_process && now - *failed_at > grace) {
      ::_exit(exit_code_of_failure);
    }
    looked = now;
  }
}

}  // namespace copus
