// The range of a step's time around its prediction, and warnings if a prediction extrapolates beyond all measurements.
#pragma once

#include <cstdint>

#include "copus/description/cluster_description.h"
#include "copus/description/parallel_strategy.h"
#include "copus/performance/training_system.h"

namespace copus {

// The range that should contain 95 % of measurements.
struct SecondsRange {
  double low = 0;
  double high = 0;
  bool holds(double seconds) const { return low <= seconds && seconds <= high; }
};

// The uncertainty of a prediction that was corrected by measurements of other configurations.
struct PredictionDoubt {
  double relative_deviation = 0;  // one standard deviation of the logarithm of a step's seconds
  double stall_seconds = 0;       // by which a step may be longer in addition
  bool beyond_measured = false;   // whether it takes more nodes than were ever measured

  SecondsRange range(double predicted_seconds) const;
};

// Returns the number of nodes for this many ranks.
int64_t nodes_of(const ClusterDescription& cluster, int64_t ranks);

// Returns the uncertainty of a configuration's prediction on at most as many nodes as were measured. The deviations
// come from published runs (docs/performance-model.md).
PredictionDoubt doubt_of(const ClusterDescription& cluster, const TrainingSystem& system,
                         const Configuration& configuration);

// Returns one standard deviation of the logarithm of the prediction error on `nodes` nodes, if measurements exist for
// up to `measured_nodes` (0: unknown). It is 0.05 for each doubling beyond them, otherwise 0.
double extrapolation_deviation(int64_t nodes, int64_t measured_nodes);

}  // namespace copus
