// Observes a training job from outside: its launcher as a child of this process, and its ranks through the memory that
// they share.
#pragma once

#include <cstdint>
#include <filesystem>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "copus/cli/compare/child_processes.h"
#include "copus/comm/health/shared_health.h"
#include "copus/comm/shared_memory/shared_memory_world.h"

namespace copus {

class WatchedJob {
 public:
  struct Rank {
    int64_t number = 0, pid = 0;
    std::string place;
    bool has_come = false;
    bool is_waiting = false;  // for other ranks
  };

  // Starts this program with `arguments`, and appends its output to the file `output`. The job is killed when
  // `processes` is destroyed, so `processes` must contain no other job.
  WatchedJob(ChildProcesses& processes, const std::vector<std::string>& arguments, const std::filesystem::path& output);

  int64_t launcher() const { return launcher_; }

  // Updates everything that the functions below return. Throws Interrupted.
  void look();
  // The launcher's exit code, once it has ended: 128 plus the signal's number if a signal ended it.
  const std::optional<int>& exit_code() const { return exit_code_; }
  // Number of failures that the job has reported so far.
  int64_t num_failures() const { return failures_before_ + (fails_ ? 1 : 0); }
  // Number of times that ranks have met.
  int64_t num_epochs() const { return std::ssize(segments_); }
  const std::vector<Rank>& ranks() const { return ranks_; }
  // Whether each rank is within a step, or waits as a spare.
  bool trains() const;
  // The processes of all ranks seen so far.
  const std::vector<int64_t>& seen() const { return seen_; }

 private:
  ChildProcesses& processes_;
  int64_t launcher_;
  std::optional<int> exit_code_;
  std::vector<uint64_t> segments_;        // the numbers of all epochs' segments
  std::optional<SharedSegment> segment_;  // of the latest epoch seen
  std::unique_ptr<SharedHealth> health_;
  std::vector<Rank> ranks_;
  std::vector<int64_t> seen_;
  bool fails_ = false;
  int64_t failures_before_ = 0;
};

// This program was told to stop.
struct Interrupted {
  int signal;
};

}  // namespace copus
