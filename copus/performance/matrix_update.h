// The cost of Muon's directions, which ranks compute on whole matrices (placement/matrix_shares.h).
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
  double compute = 0;   // matrix products of the rank that owns most
  double messages = 0;  // momenta to the owners, and directions to all ranks that update their parts, in fp32
  double total() const { return compute + messages; }
};

// Returns the seconds of a pipeline rank that has these layers.
MatrixUpdateSeconds matrix_update_seconds(const ModelDescription& model, const ParallelStrategy& strategy,
                                          const std::vector<LayerRange>& layers, const ClusterDescription& cluster,
                                          const TrainingSystem& system);

// Returns the memory in bytes of the work on the largest matrix, after a step's activations are freed: in fp32 its
// parts, the whole and its normalised form; in the precision of the iterations three more, and two squares of its
// shorter side.
double matrix_update_bytes(const ModelDescription& model, const TrainingSystem& system);

}  // namespace copus
