// The truth that predictions are tried against where there is no cluster to measure: how long the steps and re-layouts
// of a job take on it. It may differ from what is predicted, by another description of the cluster and by an error of
// each layout, as that of a real cluster would.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "copus/description/cluster_description.h"
#include "copus/description/model_description.h"
#include "copus/description/parallel_strategy.h"
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

  // Seconds for which the move of the training state from one layout to another of as many ranks stops training: those
  // of its plan on the cluster's links (copus::relayout_seconds) or, from many_ranks on, where the plan would take
  // seconds to make, those in which a rank takes its whole new state over its link between nodes (within the node if
  // there is one alone). No plan asks more of a receiver; a rank that many others take from may take longer.
  double relayout_seconds(const ParallelStrategy& from, const ParallelStrategy& to);
  static constexpr int64_t many_ranks = 512;

  // Reason why a configuration does not fit into the devices' memory; empty where it does.
  std::optional<std::string> why_too_large(const Configuration& configuration);

 private:
  double planned_seconds(const ParallelStrategy& from, const ParallelStrategy& to) const;
  double receiving_seconds(const ParallelStrategy& to);

  ModelDescription model_;
  int64_t sequence_length_;
  ClusterDescription cluster_;
  TrainingSystem system_;
  LayoutErrors errors_;
  StepTimeModel steps_;
  MemoryModel memory_;
  std::map<Configuration, double> step_seconds_;
  std::map<std::pair<ParallelStrategy, ParallelStrategy>, double> relayout_seconds_;
};

}  // namespace copus
