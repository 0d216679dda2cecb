// How well predicted memory agrees with published runs: which of those that ran it calls feasible, and which of those
// that ran out of memory it does not.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "copus/performance/memory.h"
#include "copus/workshop/published/runs.h"

namespace copus {

struct MisjudgedRun {
  std::string row_id;  // of the table of runs, or of that of failures if `status` is not empty
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
  // Runs whose label does not tell out of memory from other crashes.
  int64_t unclear = 0;
  int64_t unclear_called_infeasible = 0;
  int64_t failed_otherwise = 0;  // not counted above
  int64_t left_out = 0;          // runs of either table that we cannot put in our terms; not counted above

  // Of the runs that worked and say how much memory they took: the median of |predicted / published - 1|.
  int64_t with_memory = 0;
  std::optional<double> median_absolute_error;

  std::vector<MisjudgedRun> misjudged;  // in the order of the tables; unclear ones are not among them

  // Nothing where there are no such runs.
  std::optional<double> feasible_recall() const;
  std::optional<double> infeasible_recall() const;
};

// `runs`: rows of a table of throughput; `failures`: rows of a table of failures (may be empty).
MemoryAgreement judge_memory(const std::vector<PublishedRun>& runs, const std::vector<PublishedRun>& failures);

// What a failure's status says: "OOM Error" and "CUDA out of memory" are out of memory, "oom_or_crash" is unclear.
enum class FailureKind { out_of_memory, unclear, other };
FailureKind failure_kind(const std::string& status);

}  // namespace copus
