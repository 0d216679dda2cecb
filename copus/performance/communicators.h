// The number and the cost of the NCCL communicators that a layout opens, for the groups in train/step/rank_groups.h.
#pragma once

#include <cstdint>

#include "copus/description/cluster_description.h"
#include "copus/description/model_description.h"
#include "copus/description/parallel_strategy.h"

namespace copus {

// The number of communicators of one rank, by kind (as in CommunicatorCosts).
struct CommunicatorCounts {
  int64_t collectives = 0;
  int64_t exchanges = 0;
  int64_t messages = 0;
  bool operator==(const CommunicatorCounts&) const = default;
};

// Counts the communicators of each rank on pipeline rank `pipeline_rank`.
CommunicatorCounts count_communicators(const ModelDescription& model, const ParallelStrategy& strategy,
                                       int64_t pipeline_rank);

// Returns the device memory of these communicators in bytes.
double communicator_bytes(const CommunicatorCounts& counts, const CommunicatorCosts& costs);

// Returns the seconds for which training pauses while ranks open those communicators of `to` that `from` lacks. This is
// an upper bound, because some of them may still be open from earlier layouts.
double opening_seconds(const ModelDescription& model, const ParallelStrategy& from, const ParallelStrategy& to,
                       const CommunicatorCosts& costs);

}  // namespace copus
