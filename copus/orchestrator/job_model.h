// What is known beforehand of a job in configurations that it may be in. There are two kinds of jobs: Copus' own, whose
// model and cluster are described, and those that another program trains, of which only their own steps are known.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "copus/config/run_config.h"
#include "copus/orchestrator/observation.h"
#include "copus/performance/learning.h"
#include "copus/performance/table.h"

namespace copus {

// For one thread: it may remember what configurations have in common.
class JobModel {
 public:
  virtual ~JobModel() = default;

  // Explains why the job cannot be in a configuration, memory left aside; empty where it can.
  virtual std::optional<std::string> infeasible_reason(const Configuration& configuration) const = 0;
  // Explains why a device's memory would not do; empty where it would or nobody knows.
  virtual std::optional<std::string> out_of_memory_reason(const Configuration& configuration) = 0;
  // Predicts the bytes on the device that needs most; equal for all where nobody knows.
  virtual double memory_bytes(const Configuration& configuration) = 0;
  // Predicts a step in a feasible configuration, without corrections.
  virtual StepTimeParts predict_step(const Configuration& configuration) = 0;
  // How far the factors of these predictions may be off.
  virtual FactorPrior prior() const = 0;
  // Lists the feasible configurations that [adapt] allows on so many ranks. Throws UserError where nothing says how
  // fast they compute.
  virtual PerformanceTable table(const Knowledge& known, int64_t ranks) = 0;
  // Predicts how long a move of the training state stops the job.
  virtual double move_seconds(const ParallelStrategy& from, const ParallelStrategy& to) = 0;
  // Tells whether a step was one as others: with finite numbers, of those that the job tells.
  virtual bool is_finite(const Observation& step) const = 0;
  // Tells whether the first steps of a process take longer than those that follow.
  virtual bool warms_up() const = 0;
  // Tells whether the job is observed even where a policy has nothing to choose among.
  virtual bool may_lack_choice() const = 0;
};

// Tells whether the steps of a job are predicted: its cluster's speed is described, or its own steps are measured.
bool predicts_steps(const RunConfig& config);
bool predicts_steps(const AnyConfig& config);

// The model of the job that a configuration describes. That of a job that another program trains takes its guess of the
// step time from `known`, which has a measurement; throws UserError where it has none.
std::unique_ptr<JobModel> job_model_of(const RunConfig& config);
std::unique_ptr<JobModel> job_model_of(const AnyConfig& config, const Knowledge& known);

}  // namespace copus
