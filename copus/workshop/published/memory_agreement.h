// Judges the agreement of predicted memory with published runs: which of the runs that worked are predicted to be
// feasible, and which of the runs that ran out of memory are predicted to be infeasible.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "copus/performance/memory.h"
#include "copus/workshop/published/runs.h"

namespace copus {

struct MisjudgedRun {
  std::string row_id;  // row in the table of runs, or in that of failures if `status` is not empty
  std::string group;
  std::string status;
  MemoryPrediction prediction;
  double memory_bytes = 0;  // of a device
};

struct MemoryAgreement {
  // Runs that worked, and how many of them are predicted to fit.
  int64_t ran = 0;
  int64_t ran_called_feasible = 0;
  // Runs labelled out of memory, and how many of them are predicted not to fit.
  int64_t out_of_memory = 0;
  int64_t out_of_memory_called_infeasible = 0;
  // Runs whose label does not distinguish out of memory from other crashes.
  int64_t unclear = 0;
  int64_t unclear_called_infeasible = 0;
  int64_t failed_otherwise = 0;  // not counted above
  int64_t left_out = 0;          // runs of either table that cannot be described in our terms; not counted above

  // For runs that worked and have a published memory: the median of |predicted / published - 1|.
  int64_t with_memory = 0;
  std::optional<double> median_absolute_error;

  std::vector<MisjudgedRun> misjudged;  // in the order of the tables; without unclear ones

  // Empty if there are no such runs.
  std::optional<double> feasible_recall() const;
  std::optional<double> infeasible_recall() const;
};

// `runs`: rows of a table of throughput; `failures`: rows of a table of failures (may be empty).
MemoryAgreement judge_memory(const std::vector<PublishedRun>& runs, const std::vector<PublishedRun>& failures);

// What a failure's status means: "OOM Error" and "CUDA out of memory" are out of memory, "oom_or_crash" is unclear.
enum class FailureKind { out_of_memory, unclear, other };
FailureKind failure_kind(const std::string& status);

}  // namespace copus
