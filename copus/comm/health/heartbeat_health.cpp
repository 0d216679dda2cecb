#include "copus/comm/health/heartbeat_health.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "copus/base/error.h"

namespace copus {

namespace {

constexpr auto longest_silence = std::chrono::milliseconds(3000);
// A watchdog that was itself held up for longer cannot tell from the clock who else was silent.
constexpr auto own_pause = std::chrono::milliseconds(1000);
// A job counts as stalled after this many steps' time without progress, and no sooner than the time below.
constexpr double stalled_steps = 10;
constexpr double least_stalled_seconds = 10;

}  // namespace

HeartbeatHealth::HeartbeatHealth(int64_t rank, int64_t size) : rank_(rank), signs_(size) {
  COPUS_CHECK(rank >= 0 && rank < size, "rank ", rank, " of ", size);
  at(rank).pid = ::getpid();
}

void HeartbeatHealth::set_place(std::string_view place) {
  const std::lock_guard lock(mutex_);
  at(rank_).place = place.substr(0, place_bytes - 1);
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

std::string HeartbeatHealth::place_of(int64_t rank) const {
  const std::lock_guard lock(mutex_);
  return signs_of(rank).place;
}

void HeartbeatHealth::expect(int64_t rank, int64_t pid) {
  at(rank).expected = true;
  at(rank).heard = Clock::now();
  at(rank).pid = pid;
}

void HeartbeatHealth::hear(int64_t rank, Clock::time_point now, int64_t pid, std::string place) {
  at(rank).heard = now;
  at(rank).pid = pid;
  at(rank).place = std::move(place);
}

std::optional<FailureReport> HeartbeatHealth::find_failure(Clock::time_point now) {
  if (now - std::exchange(looked_, now) > own_pause) {
    for (Signs& each : signs_) each.heard = now;
  }
  const auto seconds = [](Clock::duration duration) { return std::chrono::duration<double>(duration).count(); };
  const double stalled_after = std::max(least_stalled_seconds, stalled_steps * expected_step_seconds_);
  if (expected_step_seconds_ > 0 && waiting_ == 0 && seconds(now - progress_) > stalled_after) {
    return FailureReport{rank_, own_place(),
                         concat("stalled: made no progress for ", std::llround(stalled_after), " s"), ::getpid()};
  }
  for (int64_t other = 0; other < size(); ++other) {
    const Signs& candidate = signs_of(other);
    if (candidate.expected && now - candidate.heard > longest_silence) {
      return FailureReport{other, candidate.place, concat("no heartbeat for ", seconds(longest_silence), " s"),
                           candidate.pid};
    }
  }
  return std::nullopt;
}

void HeartbeatHealth::set_failure(const FailureReport& report) {
  if (!failure_) failure_ = report;
  changed_.notify_all();
}

}  // namespace copus
