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

// Returns the seconds that the busiest rank of a pipeline rank with these layers takes: for the matrix products of its
// own matrices, to receive their momenta and to send and receive directions. Messages are in fp32.
double matrix_update_seconds(const ModelDescription& model, const ParallelStrategy& strategy,
                             const std::vector<LayerRange>& layers, const ClusterDescription& cluster,
                             const TrainingSystem& system);

// Returns the memory in bytes of the work on the largest matrix, after a step's activations are freed: in fp32 its
// parts, the whole and its normalised form; in the precision of training three more, and two squares of its shorter
// side.
double matrix_update_bytes(const ModelDescription& model, const TrainingSystem& system);

}  // namespace copus
