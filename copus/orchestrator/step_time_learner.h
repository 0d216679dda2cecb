// Predicts how long the steps of a run take, and learns from what they took, over the configurations that it passes
// through.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "copus/config/run_config.h"
#include "copus/performance/learning.h"
#include "copus/performance/step_time.h"

namespace copus {

// What a run computes on.
Processor processor_of(const RunConfig& config);

// What trains the run, whose precision is not automatic.
TrainingSystem training_system_of(const RunConfig& config);

class StepTimeLearner {
 public:
  // The first steps of a process set up memory, caches and communication, and the first ones of a configuration what is
  // new in it.
  static constexpr int64_t warm_up_steps = 2;
  // Steps that make one measurement. It counts from its first step on.
  static constexpr int64_t steps_per_measurement = 10;

  // Of a run whose cluster's speed is known, in configuration `initial`, after what is `known`.
  StepTimeLearner(const RunConfig& config, const Configuration& initial, Knowledge known);

  // Of the next step, as corrected by what is known: by every step at first, later by every measurement. Seconds on the
  // clock of the run.
  const Corrected& expected() const { return expected_; }
  // Of a step in any configuration that infeasible_reason allows, without corrections.
  StepTimeParts predict(const Configuration& configuration) const { return model_->predict(configuration); }

  // A step took so long.
  void add(double step_seconds);
  // The steps that follow warm up again: the run has changed its configuration, or goes on in a new process.
  void change_configuration(const Configuration& configuration);
  void resumed();

  // After every step so far.
  Knowledge knowledge() const;
  // Steps of this process and configuration that counted.
  int64_t counted_steps() const { return std::max<int64_t>(0, steps_ - warm_up_steps); }

  // Another number whenever what is expected has changed.
  int64_t revision() const { return revision_; }

  // For people: what is expected at the beginning; what came of it in the configuration that the run is in, empty
  // before a step of it counted.
  std::string introduction() const;
  std::optional<std::string> conclusion() const;

 private:
  void begin_anew();

  std::unique_ptr<StepTimeModel> model_;
  Configuration configuration_;
  StepTimeParts parts_;     // of a step, as predicted without corrections
  Knowledge known_before_;  // the steps in window_
  Corrected expected_at_first_;
  Corrected expected_;
  int64_t steps_ = 0;  // since it began anew
  int64_t revision_ = 0;
  std::vector<double> window_;  // seconds of the latest steps, not yet a whole measurement
};

}  // namespace copus
