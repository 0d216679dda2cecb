// The cost of Muon's update directions. One rank computes each direction, on an unsharded matrix
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

// Returns the bytes that computing the largest matrix's direction needs. (The step's activations have been freed by
// then.) They hold three copies of the matrix in fp32 (parts, whole, normalised), three in the precision of the
// iterations, and two square matrices of its shorter side.
double matrix_update_bytes(const ModelDescription& model, const TrainingSystem& system);

// Returns the memory in bytes for measuring noise in dual norms on the largest matrix, apart from copied gradients. The
// matrix exists four times in fp32 (both gradients, second moments, noise) and three times in the iterations that
// compute singular values, with two squares of its shorter side.
double dual_measurement_bytes(const ModelDescription& model);

}  // namespace copus
