// The range of step times around a prediction, and warnings about predictions far outside the measured range.
#pragma once

#include <cstdint>

#include "copus/description/cluster_description.h"
#include "copus/description/parallel_strategy.h"
#include "copus/performance/training_system.h"

namespace copus {

// The range that contains 95 % of measurements.
struct SecondsRange {
  double low = 0;
  double high = 0;
  bool holds(double seconds) const { return low <= seconds && seconds <= high; }
};

// The uncertainty of a prediction that measurements of other configurations have corrected.
struct PredictionDoubt {
  double relative_deviation = 0;  // standard deviation of log(seconds of a step)
  double stall_seconds = 0;       // seconds that a step may take in addition
  bool beyond_measured = false;   // whether it needs more nodes than were ever measured

  SecondsRange range(double predicted_seconds) const;
};

// Returns the number of nodes of this many ranks.
int64_t nodes_of(const ClusterDescription& cluster, int64_t ranks);

// Returns the uncertainty of a prediction, by comparison with published runs (docs/performance-model.md). It holds on
// at most as many nodes as were measured.
PredictionDoubt doubt_of(const ClusterDescription& cluster, const TrainingSystem& system,
                         const Configuration& configuration);

// Returns the standard deviation of log(measured / predicted) that extrapolation adds on `nodes` nodes: 0.05 for each
// doubling beyond `measured_nodes` (0: unknown), otherwise 0.
double extrapolation_deviation(int64_t nodes, int64_t measured_nodes);

}  // namespace copus
