// Predicts how long the steps of a run take, and learns from the measured times in each configuration of the run.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "copus/config/run_config.h"
#include "copus/orchestrator/predictions/job_model.h"
#include "copus/orchestrator/state_values.h"
#include "copus/performance/measured/learning.h"
#include "copus/performance/memory.h"
#include "copus/performance/step_time.h"
#include "copus/performance/training_system.h"

namespace copus {

// The processor that a run itself computes on.
Processor processor_of(const RunConfig& config);

// The training system of the predicted job (predicted_job), whose precision must not be automatic.
TrainingSystem training_system_of(const RunConfig& config);

// Returns the training system of this run's own processes. On the modelled clock, one process trains while step times
// are predicted for a job on another cluster: this function describes that process, and training_system_of() the
// predicted job. Treats automatic precision as fp32.
TrainingSystem executed_system_of(const RunConfig& config);

// Predicts the memory of the predicted job (predicted_job).
MemoryModel memory_model_of(const RunConfig& config);

class StepTimeLearner {
 public:
  // Number of steps that are not measured. The first steps of a process set up memory, caches and communication, and
  // the first steps in a configuration set up whatever is new in it.
  static constexpr int64_t warm_up_steps = 2;
  // Number of steps that make one measurement, which is used from its first step on.
  static constexpr int64_t steps_per_measurement = 10;

  // Begins in configuration `initial`, with the step times `known` from earlier measurements. The cluster's speed must
  // be described.
  StepTimeLearner(const RunConfig& config, const Configuration& initial, const Knowledge& known);
  // Begins with a job model that others use as well.
  StepTimeLearner(std::shared_ptr<JobModel> job, const Configuration& initial, const Knowledge& known);

  // Expected seconds of the next step on the run's clock. At first every step corrects this expectation, later every
  // whole measurement does.
  const Corrected& expected() const { return expected_; }
  // Predicts a step in any configuration that infeasible_reason allows, without corrections.
  StepTimeParts predict(const Configuration& configuration) const { return job_->predict_step(configuration); }

  // Adds the seconds of a step.
  void add(double step_seconds);
  // Make the next steps warm-up steps, because the run has changed its configuration or resumed in a new process.
  void change_configuration(const Configuration& configuration);
  void begin_warm_up();

  void visit_state(StateValues& values);

  // What the learner knows after all steps so far.
  Knowledge knowledge() const { return knowledge(open_steps()); }
  // open_steps(): the number of steps since the last complete measurement. knowledge(): what the learner would know if
  // the measurement ended after the first `open_steps` of these steps.
  int64_t open_steps() const { return std::ssize(window_); }
  Knowledge knowledge(int64_t open_steps) const;
  // Number of steps of this process and configuration that were measured.
  int64_t counted_steps() const { return std::max<int64_t>(0, steps_ - warm_up_steps); }

  // A number that changes whenever the expected step time does.
  int64_t revision() const { return revision_; }

  // Texts for the user: the step time that is expected now, and the error of the first expectation in the current
  // configuration (empty before a step in this configuration was measured).
  std::string introduction() const;
  std::optional<std::string> conclusion() const;

 private:
  void begin_anew();

  std::shared_ptr<JobModel> job_;
  Configuration configuration_;
  StepTimeParts parts_;     // of a step, as predicted without corrections
  Knowledge known_before_;  // knowledge before the steps in window_
  Corrected expected_at_first_;
  Corrected expected_;
  int64_t steps_ = 0;  // steps since the configuration or the process began
  int64_t revision_ = 0;
  std::vector<double> window_;  // seconds of the latest steps, not yet a whole measurement
};

}  // namespace copus
