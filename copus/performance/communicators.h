// The number and the cost of the communicators between devices (NCCL's) that a layout opens. train/step/rank_groups.h
// lists the groups themselves.
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

// Returns the communicators of a rank on pipeline rank `pipeline_rank`, the same for all ranks there.
CommunicatorCounts count_communicators(const ModelDescription& model, const ParallelStrategy& strategy,
                                       int64_t pipeline_rank);

// Returns the device memory of these communicators, in bytes.
double communicator_bytes(const CommunicatorCounts& counts, const CommunicatorCosts& costs);

// Returns the seconds for which training pauses while all ranks open the communicators that `to` needs and `from` does
// not have. This is an upper bound: communicators of earlier layouts may still be open, which is unknown here.
double opening_seconds(const ModelDescription& model, const ParallelStrategy& from, const ParallelStrategy& to,
                       const CommunicatorCosts& costs);

}  // namespace copus
