// The cost of the directions of Muon's updates, each of which one rank computes on a whole matrix
// (placement/matrix_shares.h).
#pragma once

#include <cstdint>
#include <vector>

#include "copus/description/cluster_description.h"
#include "copus/description/model_description.h"
#include "copus/description/parallel_strategy.h"
#include "copus/performance/training_system.h"
#include "copus/placement/stages.h"

namespace copus {

struct MatrixUpdateSeconds {
  double compute = 0;   // matrix products on the busiest rank
  double messages = 0;  // momenta to the owners, directions to all ranks that update their parts; in fp32
  double total() const { return compute + messages; }
};

// Returns the seconds on a pipeline rank that holds these layers.
MatrixUpdateSeconds matrix_update_seconds(const ModelDescription& model, const ParallelStrategy& strategy,
                                          const std::vector<LayerRange>& layers, const ClusterDescription& cluster,
                                          const TrainingSystem& system);

// Returns the memory in bytes for the largest matrix's direction; a step's activations are free by then. The matrix
// exists three times in fp32 (parts, whole, normalised) and three times in the precision of the iterations, with two
// squares of its shorter side.
double matrix_update_bytes(const ModelDescription& model, const TrainingSystem& system);

}  // namespace copus
