// Predicts properties of a job in any of its configurations. For a job that Copus trains, predictions come from the
// description of model and cluster. For a job that another program trains, only the measured times of its steps are
// known.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "copus/config/run_config.h"
#include "copus/orchestrator/observation.h"
#include "copus/performance/measured/learning.h"
#include "copus/performance/measured/table.h"

namespace copus {

// Not thread-safe: it may cache what configurations have in common.
class JobModel {
 public:
  virtual ~JobModel() = default;

  // Explains why a configuration is infeasible, memory aside; empty if it is feasible.
  virtual std::optional<std::string> infeasible_reason(const Configuration& configuration) const = 0;
  // Explains why a device's memory is too small; empty if it suffices or is unknown.
  virtual std::optional<std::string> out_of_memory_reason(const Configuration& configuration) = 0;
  // Predicts the bytes on the device that needs most; equal for all configurations if unknown.
  virtual double memory_bytes(const Configuration& configuration) = 0;
  // Predicts a step in a feasible configuration, without corrections.
  virtual StepTimeParts predict_step(const Configuration& configuration) = 0;
  // The prior of the factors by which these predictions may be wrong.
  virtual FactorPrior prior() const = 0;
  // Lists the feasible configurations that [adapt] allows on this many ranks. Throws UserError if the cluster's speed
  // is not described.
  virtual PerformanceTable table(const Knowledge& known, int64_t ranks) = 0;
  // Predicts how long a move of the training state stops the job.
  virtual double move_seconds(const ParallelStrategy& from, const ParallelStrategy& to) = 0;
  // Whether all numbers that the job reports about a step are finite.
  virtual bool is_finite(const Observation& step) const = 0;
  // Whether the first steps of a process are slower than later ones.
  virtual bool warms_up() const = 0;
  // Whether the controller observes the job even if a policy has nothing to choose among.
  virtual bool may_lack_choice() const = 0;
};

// Whether step times of the job are predicted: its cluster's speed is described, or its own steps are measured.
bool predicts_steps(const RunConfig& config);
bool predicts_steps(const AnyConfig& config);

// Makes the model of the job that a configuration describes. For a job that another program trains, step times follow
// from the measurements in `known`; throws UserError if there are none.
std::unique_ptr<JobModel> job_model_of(const RunConfig& config);
std::unique_ptr<JobModel> job_model_of(const AnyConfig& config, const Knowledge& known);

}  // namespace copus
