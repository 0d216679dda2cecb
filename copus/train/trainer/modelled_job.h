// What a trainer needs to know about the job that a run on the modelled clock represents: the duration of steps and
// switches, the possible configurations, and how one rank executes the work of the job's ranks.
#pragma once

#include <optional>
#include <string>

#include "copus/config/run_config.h"
#include "copus/performance/modelled_truth.h"
#include "copus/train/step/obstacle.h"

namespace copus {

class ModelledJob {
 public:
  explicit ModelledJob(const RunConfig& config);

  double step_seconds(const Configuration& configuration) { return truth_.step_seconds(configuration); }
  // Seconds for which a change of configuration stops training; 0 if the layout stays the same.
  double pause_seconds(const Configuration& from, const Configuration& to);
  // What prevents the job from changing to a configuration; empty if nothing does.
  std::optional<Obstacle> obstacle_to(const Configuration& configuration);

 private:
  PredictedJob job_;
  int64_t num_ranks_;
  ModelledTruth truth_;
};

// Returns the configuration that the ranks of a run in `configuration` execute. On the modelled clock one rank executes
// the global batch, in micro-batches of a size at which this rank is fast, whatever the job's micro-batch. On other
// clocks the result is `configuration`.
Configuration executed_configuration(const RunConfig& config, const Configuration& configuration);

}  // namespace copus
