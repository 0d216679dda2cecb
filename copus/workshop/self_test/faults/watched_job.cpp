#include "copus/workshop/self_test/faults/watched_job.h"

#include <algorithm>

namespace copus {

WatchedJob::WatchedJob(ChildProcesses& processes, const std::vector<std::string>& arguments,
                       const std::filesystem::path& output)
    : processes_(processes), launcher_(processes.pid_of(processes.start(arguments, output))) {}

void WatchedJob::look() {
  while (const auto news = processes_.look()) {
    if (news->signal != 0) throw Interrupted{news->signal};
    exit_code_ = news->exit_code;
  }
  if (exit_code_) return;
  // Counts the failure that ended an epoch before it switches to the next epoch.
  fails_ = health_ && health_->failure();
  if (auto next = SharedSegment::find(launcher_, segments_)) {
    if (health_ && health_->failure()) ++failures_before_;
    fails_ = false;
    segments_.push_back(next->number());
    health_.reset();
    segment_ = std::move(next);
    health_ = std::make_unique<SharedHealth>(segment_->health(), segment_->size(), segment_->size());
  }
  ranks_.clear();
  if (!health_) return;
  for (int64_t rank = 0; rank < health_->size(); ++rank) {
    const RankSigns signs = health_->signs_of(rank);
    ranks_.push_back({rank, signs.pid, health_->place_of(rank), signs.heartbeats > 0, signs.waiting});
    if (signs.pid > 0 && std::ranges::count(seen_, signs.pid) == 0) seen_.push_back(signs.pid);
  }
}

bool WatchedJob::trains() const {
  return !exit_code_ && !fails_ && !ranks_.empty() && std::ranges::all_of(ranks_, [](const Rank& rank) {
    return rank.place.starts_with("step ") || rank.place == "waiting as a spare";
  });
}

}  // namespace copus
