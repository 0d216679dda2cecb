// The truth that predictions are tried against where there is no cluster to measure: how long the steps and re-layouts
// of a job take on it. It may differ from what is predicted, by another description of the cluster and by an error of
// each layout, as that of a real cluster would.
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

// Errors of predictions that differ from layout to layout, alike for similar ones. The factor of a configuration is
// exp(size * (z_d + z_t + z_p + z_b) / 2), where z_d is a standard normal deviate that all configurations with the same
// d share; z_t, z_p and z_b likewise for t, p and the micro-batch. So its logarithm has one standard deviation `size`,
// its median over seeds is 1, and two configurations that share k of the four have a correlation of k / 4.
struct LayoutErrors {
  double size = 0;
  uint64_t seed = 0;

  // A function of seed and configuration alone.
  double factor(const Configuration& configuration) const;
};

// For one thread. It remembers every answer, so that it costs a step nothing.
class ModelledTruth {
 public:
  // Serves clusters whose speed is known (is_speed_known).
  ModelledTruth(const ModelDescription& model, int64_t sequence_length, const ClusterDescription& cluster,
                const TrainingSystem& system, const LayoutErrors& errors);

  // Seconds of every step in a configuration that infeasible_reason allows.
  double step_seconds(const Configuration& configuration);

  // Seconds for which the move of the training state from one layout to another of as many ranks stops training, as
  // RelayoutForecast has them.
  double relayout_seconds(const ParallelStrategy& from, const ParallelStrategy& to) {
    return relayouts_.seconds(from, to);
  }

  // Reason why a configuration does not fit into the devices' memory; empty where it does.
  std::optional<std::string> why_too_large(const Configuration& configuration);

 private:
  double memory_bytes_;
  LayoutErrors errors_;
  StepTimeModel steps_;
  MemoryModel memory_;
  RelayoutForecast relayouts_;
  std::map<Configuration, double> step_seconds_;
};

}  // namespace copus
