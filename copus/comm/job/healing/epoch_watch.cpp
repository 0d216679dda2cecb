#include "copus/comm/job/healing/epoch_watch.h"

#include <algorithm>
#include <utility>

#include "copus/comm/health/process_state.h"

namespace copus {

SegmentWatch::SegmentWatch(int64_t size, std::chrono::steady_clock::time_point job_started)
    : segment_(SharedSegment::create(size, job_started)),
      health_(segment_.health(), size, size),
      monitor_(health_, RankMonitor::Role::parent) {
  health_.become_launcher();
}

bool SegmentWatch::is_stopped(int64_t rank) const {
  return process_state(health_.signs_of(rank).pid) == ProcessState::stopped;
}

double SegmentWatch::longest_step_seconds() const {
  double longest = 0;
  for (int64_t rank = 0; rank < health_.size(); ++rank) {
    longest = std::max(longest, health_.signs_of(rank).expected_step_seconds);
  }
  return longest;
}

FailureReport SegmentWatch::told_of(const FailureReport& judged, bool /*by_us*/) const {
  const std::optional<FailureReport> first = failure();
  return first && first->rank == judged.rank ? *first : judged;
}

void ReportsWatch::report(const FailureReport& report) {
  if (report.rank >= 0) {
    Rank& rank = ranks_.at(report.rank);
    if (rank.place.empty()) rank.place = report.place;
  }
  if (failure_) return;
  failure_ = report;
  failure_->announced = true;
  if (report.rank >= 0) failure_->pid = ranks_.at(report.rank).pid;
}

std::optional<FailureReport> ReportsWatch::look(double seconds) {
  for (int64_t rank = 0; rank < std::ssize(ranks_); ++rank) {
    Rank& one = ranks_[rank];
    if (!one.stopped) continue;
    one.stopped_seconds += std::min(seconds, longest_look_at_stopped);
    if (one.stopped_seconds >= HealthLimits{}.stopped_seconds) {
      return FailureReport{rank, one.place, stopped_cause, one.pid};
    }
  }
  return std::nullopt;
}

// Combines what is known about a process. Its launcher knows best how the process ended, the rank itself knows its own
// error, and the rank's peers know where it was. If a launcher killed the process, the report gives the reason for the
// kill.
FailureReport ReportsWatch::told_of(const FailureReport& judged, bool by_us) const {
  const Rank& rank = ranks_.at(judged.rank);
  FailureReport told = judged;
  told.place = rank.place;
  if (rank.own_words) {
    told.cause = *rank.own_words;
  } else if (by_us && failure_ && failure_->rank == judged.rank) {
    told.cause = failure_->cause;
  }
  return told;
}

void ReportsWatch::set_stopped(int64_t rank, bool is_stopped) {
  ranks_.at(rank).stopped = is_stopped;
  ranks_.at(rank).stopped_seconds = 0;
}

void ReportsWatch::hear(int64_t rank, const FromRank& message) {
  Rank& speaker = ranks_.at(rank);
  if (message.kind == FromRank::Kind::joined) speaker.joined = true;
  if (message.kind != FromRank::Kind::left) return;
  longest_step_seconds_ = std::max(longest_step_seconds_, message.expected_step_seconds);
  const std::optional<FailureReport>& failure = message.failure;
  if (!failure || failure->rank != rank) speaker.left = true;
  if (!failure || failure->rank < -1 || failure->rank >= std::ssize(ranks_)) return;
  if (failure->rank == rank) speaker.own_words = failure->cause;
  report(*failure);
}

}  // namespace copus
