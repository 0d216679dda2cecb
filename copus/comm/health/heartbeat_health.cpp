#include "copus/comm/health/heartbeat_health.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "copus/base/error.h"
#include "copus/comm/health/fault_point.h"

namespace copus {

namespace {

// How much longer than longest_decision report() waits.
constexpr auto longest_telling = std::chrono::milliseconds(300);
// A rank counts as stalled if it makes no progress for the time of this many steps, but at least for the time below.
constexpr double stalled_steps = 10;
constexpr double least_stalled_seconds = 10;

}  // namespace

HeartbeatHealth::HeartbeatHealth(int64_t rank, int64_t size, double wait_seconds, Clock::time_point started)
    : member_(rank, size, ::getpid(), wait_seconds, started) {}

void HeartbeatHealth::set_place(std::string_view place) {
  pass_fault_point(place);
  const std::lock_guard lock(mutex_);
  member_.set_place(place.substr(0, place_bytes - 1));
  progress_ = Clock::now();
}

void HeartbeatHealth::set_expected_step_seconds(double seconds) {
  const std::lock_guard lock(mutex_);
  expected_step_seconds_ = seconds;
  progress_ = Clock::now();
}

void HeartbeatHealth::begin_wait() {
  const std::lock_guard lock(mutex_);
  ++waiting_;
}

void HeartbeatHealth::end_wait() {
  const std::lock_guard lock(mutex_);
  --waiting_;
  progress_ = Clock::now();
}

std::optional<FailureReport> HeartbeatHealth::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

double HeartbeatHealth::expected_step_seconds() const {
  const std::lock_guard lock(mutex_);
  return expected_step_seconds_;
}

std::string HeartbeatHealth::place_of(int64_t rank) const {
  const std::lock_guard lock(mutex_);
  return member_.place_of(rank);
}

void HeartbeatHealth::report(const FailureReport& report) { submit({report}); }

void HeartbeatHealth::submit(const TreeMember::Decision& report) {
  std::unique_lock lock(mutex_);
  if (has_failed() || member_.has_ended()) return;
  member_.report(report, Clock::now());
  wake();
  changed_.wait_for(lock, longest_decision + longest_telling, [&] { return has_failed(); });
  set_failure(report.failure);
}

void HeartbeatHealth::look(Clock::time_point now) {
  const std::chrono::duration<double> idle = now - progress_;
  const double stalled_after = std::max(least_stalled_seconds, stalled_steps * expected_step_seconds_);
  if (expected_step_seconds_ > 0 && waiting_ == 0 && idle.count() > stalled_after) {
    const std::string cause = concat("stalled: made no progress for ", std::llround(stalled_after), " s");
    member_.report({{rank(), "", cause}}, now);
  }
  member_.look(now);
}

void HeartbeatHealth::set_failure(const FailureReport& report) {
  if (!failure_) failure_ = report;
  changed_.notify_all();
}

}  // namespace copus
