#include "copus/comm/health/rank_monitor.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "copus/base/error.h"

namespace copus {

namespace {

constexpr double longest_look = 0.5;
constexpr double patience_in_steps = 10;

std::string whole_seconds(double seconds) { return concat(std::llround(seconds), " s"); }

}  // namespace

RankMonitor::RankMonitor(const SharedHealth& health, Role role, HealthLimits limits,
                         std::function<ProcessState(int64_t pid)> state_of_process,
                         std::function<bool(int64_t pid)> is_runnable)
    : health_(health),
      role_(role),
      limits_(limits),
      state_of_process_(std::move(state_of_process)),
      is_runnable_(std::move(is_runnable)),
      seen_(health.size()) {}

std::optional<std::string> RankMonitor::judge_process(int64_t rank, const RankSigns& signs, double seconds,
                                                      Seen* seen) const {
  const bool beats = signs.heartbeats > 0 && !signs.left;
  if (!beats && role_ == Role::rank) return std::nullopt;
  if (std::exchange(seen->heartbeats, signs.heartbeats) != signs.heartbeats) {
    seen->silent_seconds = 0;
    return std::nullopt;
  }
  const ProcessState state = state_of_process_(signs.pid);
  if (state == ProcessState::gone) {
    // The launcher is the parent of the process and reports how the process ended. Ranks wait for that report as long
    // as for a heartbeat, because the launcher may be delayed.
    if (role_ == Role::parent) return std::nullopt;
    // The rank may have left after its signs were read.
    if (health_.signs_of(rank).left) return std::nullopt;
    if (!health_.has_launcher()) return "its process ended";
  }
  if (!beats && state == ProcessState::running) {
    seen->silent_seconds = 0;
    return std::nullopt;
  }
  seen->silent_seconds += seconds;
  const bool stopped = state == ProcessState::stopped;
  if (stopped && seen->silent_seconds >= limits_.stopped_seconds) return stopped_cause;
  if (stopped || seen->silent_seconds < limits_.silence_seconds) return std::nullopt;
  // On an overloaded machine, a process may wait for a processor for longer than the limit without having failed. If it
  // runs but makes no progress, judge_progress notices.
  if (state == ProcessState::running && is_runnable_(signs.pid)) return std::nullopt;
  // The rank may have sent a heartbeat after its signs were read, and may be asleep again now.
  if (health_.signs_of(rank).heartbeats != signs.heartbeats) return std::nullopt;
  return "no heartbeat for " + whole_seconds(limits_.silence_seconds);
}

std::optional<std::string> RankMonitor::judge_progress(const RankSigns& signs, double seconds, Seen* seen) const {
  const bool progress = std::exchange(seen->progress, signs.progress) != signs.progress;
  if (progress || signs.waiting || signs.left || signs.expected_step_seconds <= 0) {
    seen->idle_seconds = 0;
    return std::nullopt;
  }
  seen->idle_seconds += seconds;
  const double patience = std::max(limits_.stall_seconds, patience_in_steps * signs.expected_step_seconds);
  if (seen->idle_seconds < patience) return std::nullopt;
  return "stalled: made no progress for " + whole_seconds(patience);
}

std::optional<FailureReport> RankMonitor::look(double seconds) {
  seconds = std::min(seconds, longest_look);
  int64_t present = 0;
  bool all_waiting = true;
  bool progress = false;
  double patience = limits_.stall_seconds;
  for (int64_t rank = 0; rank < health_.size(); ++rank) {
    Seen& seen = seen_[rank];
    const RankSigns signs = health_.signs_of(rank);
    if (seen.forgotten || signs.pid == 0) continue;
    if (const auto cause = judge_process(rank, signs, seconds, &seen))
      return FailureReport{rank, health_.place_of(rank), *cause};
    progress = progress || signs.progress != seen.progress;
    if (const auto cause = judge_progress(signs, seconds, &seen))
      return FailureReport{rank, health_.place_of(rank), *cause};
    if (signs.left) continue;
    ++present;
    all_waiting = all_waiting && signs.waiting && signs.expected_step_seconds > 0;
    patience = std::max(patience, patience_in_steps * signs.expected_step_seconds);
  }
  all_waiting_seconds_ = present > 0 && all_waiting && !progress ? all_waiting_seconds_ + seconds : 0;
  if (all_waiting_seconds_ < patience) return std::nullopt;
  return FailureReport{-1, "", "all ranks wait for one another and made no progress for " + whole_seconds(patience)};
}

}  // namespace copus
