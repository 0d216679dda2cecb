// How far a step's seconds may lie from what is predicted, and whether that is beyond all that was measured.
#pragma once

#include <cstdint>

#include "copus/description/cluster_description.h"
#include "copus/description/parallel_strategy.h"
#include "copus/performance/training_system.h"

namespace copus {

// Between these seconds 95 % of measurements are to lie.
struct SecondsRange {
  double low = 0;
  double high = 0;
  bool holds(double seconds) const { return low <= seconds && seconds <= high; }
};

// How much a prediction is to be doubted that was corrected by measurements of other configurations.
struct PredictionDoubt {
  double relative_deviation = 0;  // one standard deviation of the logarithm of a step's seconds
  double stall_seconds = 0;       // by which a step may be longer besides
  bool beyond_measured = false;   // whether it takes more nodes than anything was measured on

  SecondsRange range(double predicted_seconds) const;
};

// Returns the nodes that so many ranks take.
int64_t nodes_of(const ClusterDescription& cluster, int64_t ranks);

// Returns the doubt about a configuration on no more nodes than were measured. The deviations were read off published
// runs (docs/performance-model.md).
PredictionDoubt doubt_of(const ClusterDescription& cluster, const TrainingSystem& system,
                         const Configuration& configuration);

// Returns one standard deviation of the logarithm of what a prediction is off by on `nodes` nodes because no more than
// `measured_nodes` were measured (0: not said): 0.05 for each doubling, and 0 up to there.
double extrapolation_deviation(int64_t nodes, int64_t measured_nodes);

}  // namespace copus
