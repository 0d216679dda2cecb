// Measures how much time a decision rule loses and gains over many scenarios. Each result is compared with two results
// in hindsight: the best single configuration (the best static run) and the best sequence of configurations (the
// clairvoyant run; hindsight.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "copus/simulate/scenario.h"
#include "copus/simulate/simulated_run.h"

namespace copus {

// The result of one rule in one scenario. Times are relative: the run's seconds divided by the seconds that the best
// static run needs for the same progress, even if the scenario ends after a given time.
struct RegretOutcome {
  int64_t scenario = 0;
  std::string job, worth, growth;  // names of the scenario's job and families
  double time = 1;
  double clairvoyant_time = 1;  // at most 1, and at most `time`
  int64_t steps = 0, relayouts = 0, batch_changes = 0, calibrations = 0;
  double pause_share = 0;  // of the run's seconds

  double slowdown() const { return time - 1; }
};

// Compares a scenario's run with what was possible.
RegretOutcome outcome_of(const Scenario& scenario, const SimulatedRun& run);

struct RegretSummary {
  int64_t scenarios = 0;
  double clairvoyant_gain = 0;  // mean over scenarios of 1 - clairvoyant_time
  double captured = 0;          // sum of 1 - time over the sum of 1 - clairvoyant_time; NaN if the latter is 0
  double within_1_percent = 0;  // shares of the scenarios with a slowdown of at most 1 % and 3 %
  double within_3_percent = 0;
  double median_slowdown = 0, worst_slowdown = 0;
  double relayouts = 0, batch_changes = 0;  // means
};

// Summarises the outcomes, of which there must be at least one.
RegretSummary summarise(const std::vector<RegretOutcome>& outcomes);

// Sorts the outcomes by slowdown, the worst first, and returns the first `count`.
std::vector<RegretOutcome> worst_of(std::vector<RegretOutcome> outcomes, size_t count);

}  // namespace copus
