// Judges predicted memory by published runs: how many of the runs that worked are predicted to fit, and how many of the
// runs that ran out of memory are predicted not to fit.
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
  // Failed runs whose status does not say whether they ran out of memory or crashed otherwise.
  int64_t unclear = 0;
  int64_t unclear_called_infeasible = 0;
  int64_t failed_otherwise = 0;  // not counted above
  int64_t left_out = 0;          // runs of either table that our memory model cannot describe; not counted above

  // Runs that worked and whose memory was published, and the median of |predicted / published - 1| over them.
  int64_t with_memory = 0;
  std::optional<double> median_absolute_error;

  std::vector<MisjudgedRun> misjudged;  // in the order of the tables; without unclear ones

  // Empty if there are no runs to compute the fraction from.
  std::optional<double> feasible_recall() const;
  std::optional<double> infeasible_recall() const;
};

// `runs`: rows of a table of throughput; `failures`: rows of a table of failures (may be empty).
MemoryAgreement judge_memory(const std::vector<PublishedRun>& runs, const std::vector<PublishedRun>& failures);

// What a failure's status means: "OOM Error" and "CUDA out of memory" are out of memory, "oom_or_crash" is unclear.
enum class FailureKind { out_of_memory, unclear, other };
FailureKind failure_kind(const std::string& status);

}  // namespace copus
