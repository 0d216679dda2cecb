// Predicts how long the steps of a run take, and learns from what they took: on the rank that writes the run directory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "copus/config/run_config.h"
#include "copus/performance/learning.h"
#include "copus/report/performance_profile.h"

namespace copus {

class StepTimeLearner {
 public:
  // The first steps of a process set up memory, caches and communication.
  static constexpr int64_t warm_up_steps = 2;
  // Steps that make one measurement. It counts from its first step on.
  static constexpr int64_t steps_per_measurement = 10;

  // Of a run whose precision is not automatic; empty where nothing says how fast the cluster computes. What is known
  // comes from `own_profile`, the run's own where it goes on (a path without a file: it has none), or else from
  // cluster.profile. Throws UserError when either is damaged, and when the latter is of something else or there is
  // nothing to correct; the former then only counts for nothing, since a run may go on with another cluster.
  static std::optional<StepTimeLearner> of_run(const RunConfig& config, const std::filesystem::path& own_profile);

  // Of the next step, as corrected by what is known: by every step at first, later by every measurement. Seconds on the
  // clock of the run.
  const Corrected& expected() const { return expected_; }

  // A step took so long.
  void add(double step_seconds);

  PerformanceProfile profile() const { return {subject_, known()}; }

  // For people: what is expected at the beginning, and on what grounds; what came of it, empty before a step counted.
  std::string introduction() const;
  std::optional<std::string> conclusion() const;

 private:
  StepTimeLearner(const RunConfig& config, ProfileSubject subject, Knowledge known, std::string grounds);

  Knowledge known() const;  // after the steps in window_

  ProfileSubject subject_;
  Configuration configuration_;
  StepTimeParts parts_;     // of a step, as predicted without corrections
  Knowledge known_before_;  // the steps in window_
  std::string grounds_;
  Corrected expected_at_first_;
  Corrected expected_;
  int64_t steps_ = 0;           // of this process
  std::vector<double> window_;  // seconds of the latest steps, not yet a whole measurement
};

}  // namespace copus
