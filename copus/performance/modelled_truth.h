// The true durations of steps and re-layouts on the modelled clock. As on a real cluster, they may differ from the
// predictions: they can use another cluster description, and contain an error for each layout.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "copus/description/cluster_description.h"
#include "copus/description/model_description.h"
#include "copus/description/parallel_strategy.h"
#include "copus/performance/relayout_forecast.h"
#include "copus/performance/step_time.h"
#include "copus/performance/training_system.h"

namespace copus {

// Prediction errors that differ between layouts, and are correlated between similar layouts. A configuration's step
// time is multiplied by exp(size * (z_d + z_t + z_p + z_b) / 2). z_d is a standard normal deviate that all
// configurations with the same d share; z_t, z_p and z_b are the same for t, p and the micro-batch. The logarithm of
// the error has the standard deviation `size`, and two configurations that share k of the four deviates have the
// correlation k / 4.
struct LayoutErrors {
  double size = 0;
  uint64_t seed = 0;

  // A pure function of seed and configuration.
  double factor(const Configuration& configuration) const;
};

// The modelled clock. Caches all answers, because every step asks. Not thread-safe.
class ModelledTruth {
 public:
  // The cluster's speed must be known (is_speed_known).
  ModelledTruth(const ModelDescription& model, int64_t sequence_length, const ClusterDescription& cluster,
                const TrainingSystem& system, const LayoutErrors& errors);

  // Returns the seconds of a step in a configuration that infeasible_reason allows.
  double step_seconds(const Configuration& configuration);

  // Returns the seconds for which training stops while its state moves between two layouts of the same number of ranks,
  // as in RelayoutForecast.
  double relayout_seconds(const ParallelStrategy& from, const ParallelStrategy& to) {
    return relayouts_.seconds(from, to);
  }

  // Explains why a configuration does not fit into the devices' memory; empty if it fits.
  std::optional<std::string> why_too_large(const Configuration& configuration);

 private:
  ClusterDescription cluster_;
  LayoutErrors errors_;
  StepTimeModel steps_;
  MemoryModel memory_;
  RelayoutForecast relayouts_;
  std::map<Configuration, double> step_seconds_;
};

}  // namespace copus
