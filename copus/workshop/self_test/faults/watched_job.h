// A training job seen from outside: its launcher as a child of this process, and its ranks as they show themselves in
// the memory that they share.
#pragma once

#include <cstdint>
#include <filesystem>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "copus/cli/child_processes.h"
#include "copus/comm/health/shared_health.h"
#include "copus/comm/shared_memory/shared_memory_world.h"

namespace copus {

class WatchedJob {
 public:
  struct Rank {
    int64_t number = 0, pid = 0;
    std::string place;
    bool has_come = false;
    bool is_waiting = false;  // for others
  };

  // Starts this program with `arguments`; what it prints is added to the file `output`. It ends with `processes`, which
  // has no other one.
  WatchedJob(ChildProcesses& processes, const std::vector<std::string>& arguments, const std::filesystem::path& output);

  int64_t launcher() const { return launcher_; }

  // Looks at everything; what follows is as it was then. Throws Interrupted.
  void look();
  // That of the launcher, once it has ended: 128 and the signal's number where a signal ended it.
  const std::optional<int>& exit_code() const { return exit_code_; }
  // Number of failures that the job has named so far.
  int64_t num_failures() const { return failures_before_ + (fails_ ? 1 : 0); }
  // Number of times that ranks have come together.
  int64_t num_epochs() const { return std::ssize(segments_); }
  const std::vector<Rank>& ranks() const { return ranks_; }
  // Whether each rank is within a step, or waits as a spare.
  bool trains() const;
  // The processes of all ranks that were ever seen.
  const std::vector<int64_t>& seen() const { return seen_; }

 private:
  ChildProcesses& processes_;
  int64_t launcher_;
  std::optional<int> exit_code_;
  std::vector<uint64_t> segments_;        // the numbers of all epochs' segments
  std::optional<SharedSegment> segment_;  // of the epoch that was last seen
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
