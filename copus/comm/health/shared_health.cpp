#include "copus/comm/health/shared_health.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <bit>
#include <utility>

#include "copus/base/error.h"
#include "copus/comm/health/fault_point.h"
#include "copus/comm/health/fixed_text.h"

namespace copus {

struct alignas(64) SharedHealth::RankState {
  // The number of places set so far. The latest place is in places[place_version % 2]. Every change counts as progress.
  std::atomic<uint32_t> place_version;
  std::atomic<uint32_t> waiting;  // number of this rank's threads that wait for others
  std::atomic<uint64_t> waits_ended;
  std::atomic<double> expected_step_seconds;
  std::atomic<int64_t> pid;
  std::atomic<uint64_t> heartbeats;
  std::atomic<uint32_t> left;
  std::array<std::array<std::atomic<uint64_t>, place_bytes / 8>, 2> places;
  // Written at most once, before the region's `failed` names this rank.
  int64_t failed_rank;
  std::array<char, place_bytes> failed_place;
  std::array<char, cause_bytes> cause;
};

struct alignas(64) SharedHealth::Region {
  std::atomic<int64_t> failed;  // 0, or 1 + the rank whose state holds the valid report
  std::atomic<uint32_t> has_launcher;
};

int64_t health_bytes(int64_t size) {
  return static_cast<int64_t>(sizeof(SharedHealth::Region)) +
         (size + 1) * static_cast<int64_t>(sizeof(SharedHealth::RankState));
}

SharedHealth::Region& SharedHealth::region_at(std::byte* address) { return *reinterpret_cast<Region*>(address); }

SharedHealth::SharedHealth(std::byte* region, int64_t rank, int64_t size)
    : region_(region_at(region)), rank_(rank), size_(size) {
  COPUS_CHECK(rank >= 0 && rank <= size, "rank ", rank, " of ", size);
}

SharedHealth::RankState& SharedHealth::state_of(int64_t rank) const {
  return reinterpret_cast<RankState*>(&region_ + 1)[rank];
}

void SharedHealth::set_place(std::string_view place) {
  pass_fault_point(place);
  std::array<char, place_bytes> text;
  write_text(text, place);
  const auto words = std::bit_cast<std::array<uint64_t, place_bytes / 8>>(text);
  const std::scoped_lock lock(mutex_);
  RankState& state = state_of(rank_);
  // Writes the new place into the slot that no reader uses yet. If the writer is delayed or dies, the previous place
  // stays intact.
  const uint32_t version = state.place_version.load(std::memory_order_relaxed) + 1;
  // The release order lets readers detect overwriting. The place after next reuses this slot: a reader that sees one of
  // its words also sees that the version has changed.
  for (size_t i = 0; i < words.size(); ++i) state.places[version % 2][i].store(words[i], std::memory_order_release);
  state.place_version.store(version, std::memory_order_release);
}

std::string SharedHealth::place_of(int64_t rank) const {
  const RankState& state = state_of(rank);
  std::array<uint64_t, place_bytes / 8> words;
  uint32_t version = state.place_version.load(std::memory_order_acquire);
  while (true) {
    for (size_t i = 0; i < words.size(); ++i) words[i] = state.places[version % 2][i].load(std::memory_order_acquire);
    const uint32_t after = state.place_version.load(std::memory_order_acquire);
    if (after == version) break;
    version = after;
  }
  return read_text(std::bit_cast<std::array<char, place_bytes>>(words));
}

void SharedHealth::set_expected_step_seconds(double seconds) {
  state_of(rank_).expected_step_seconds.store(seconds, std::memory_order_relaxed);
}

void SharedHealth::begin_wait() { state_of(rank_).waiting.fetch_add(1, std::memory_order_relaxed); }

void SharedHealth::end_wait() {
  RankState& state = state_of(rank_);
  state.waits_ended.fetch_add(1, std::memory_order_relaxed);
  state.waiting.fetch_sub(1, std::memory_order_relaxed);
}

RankSigns SharedHealth::signs_of(int64_t rank) const {
  const RankState& state = state_of(rank);
  RankSigns signs;
  signs.pid = state.pid.load(std::memory_order_relaxed);
  signs.heartbeats = state.heartbeats.load(std::memory_order_relaxed);
  signs.left = state.left.load(std::memory_order_acquire) != 0;
  signs.waiting = state.waiting.load(std::memory_order_relaxed) > 0;
  signs.progress =
      state.place_version.load(std::memory_order_relaxed) + state.waits_ended.load(std::memory_order_relaxed);
  signs.expected_step_seconds = state.expected_step_seconds.load(std::memory_order_relaxed);
  return signs;
}

void SharedHealth::beat() {
  RankState& state = state_of(rank_);
  state.pid.store(::getpid(), std::memory_order_relaxed);
  state.heartbeats.fetch_add(1, std::memory_order_relaxed);
}

void SharedHealth::leave() { state_of(rank_).left.store(1, std::memory_order_release); }

void SharedHealth::become_launcher() { region_.has_launcher.store(1, std::memory_order_relaxed); }

void SharedHealth::set_process(int64_t rank, int64_t pid) { state_of(rank).pid.store(pid, std::memory_order_relaxed); }

bool SharedHealth::has_launcher() const { return region_.has_launcher.load(std::memory_order_relaxed) != 0; }

bool SharedHealth::claim(const FailureReport& report) {
  const std::scoped_lock lock(mutex_);
  if (std::exchange(reported_, true)) return false;
  RankState& state = state_of(rank_);
  state.failed_rank = report.rank;
  write_text(state.failed_place, report.place);
  write_text(state.cause, report.cause);
  int64_t none = 0;
  return region_.failed.compare_exchange_strong(none, rank_ + 1, std::memory_order_release, std::memory_order_relaxed);
}

void SharedHealth::report(const FailureReport& report) {
  if (!claim(report)) return;
  const FailureReport counted = *failure();
  if (counted.announced && !has_launcher()) announce(counted);
}

void SharedHealth::report_own_error() { claim({rank_, place_of(rank_), own_error_cause}); }

std::optional<FailureReport> SharedHealth::failure() const {
  const int64_t failed = region_.failed.load(std::memory_order_acquire);
  if (failed == 0) return std::nullopt;
  const RankState& state = state_of(failed - 1);
  FailureReport report{state.failed_rank, read_text(state.failed_place), read_text(state.cause)};
  if (report.rank >= 0) report.pid = signs_of(report.rank).pid;
  report.announced = has_launcher() || signs_of(failed - 1).heartbeats > 0;
  return report;
}

}  // namespace copus
