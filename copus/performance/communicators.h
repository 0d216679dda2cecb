// How many communicators between devices (NCCL's) a layout opens, and what they take: train/rank_groups.h lists the
// groups themselves.
#pragma once

#include <cstdint>

#include "copus/description/cluster_description.h"
#include "copus/description/model_description.h"
#include "copus/description/parallel_strategy.h"

namespace copus {

// The communicators of one rank, by kind (CommunicatorCosts).
struct CommunicatorCounts {
  int64_t collectives = 0;
  int64_t exchanges = 0;
  int64_t messages = 0;
  bool operator==(const CommunicatorCounts&) const = default;
};

// Returns the communicators of the ranks of a pipeline stage's rank `pipeline_rank`, alike for all of them.
CommunicatorCounts count_communicators(const ModelDescription& model, const ParallelStrategy& strategy,
                                       int64_t pipeline_rank);

// Returns the device memory that they take, in bytes.
double communicator_bytes(const CommunicatorCounts& counts, const CommunicatorCosts& costs);

// Returns the seconds for which training stands still while all ranks open what `to` needs and `from` does not have.
// Communicators of still earlier layouts, which may be open yet, are not known here: it is an upper bound then.
double opening_seconds(const ModelDescription& model, const ParallelStrategy& from, const ParallelStrategy& to,
                       const CommunicatorCosts& costs);

}  // namespace copus
