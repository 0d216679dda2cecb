// Defines the true values of one simulated run, which do not depend on who decides in it, and the noise of its steps.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "copus/simulate/gradient_norms.h"
#include "copus/simulate/hindsight.h"
#include "copus/simulate/truth.h"

namespace copus {

struct SimulatedWorld {
  uint64_t seed = 0;  // of the noise of its steps
  Truth truth;
  TrueSeconds seconds;       // per step, of every candidate that fits into the true devices; others are vetoed
  double pause_seconds = 0;  // of a re-layout
  // Seconds of a re-layout from one strategy to another, used instead of pause_seconds if not empty. Called on one
  // thread, because the function may cache its results without a lock.
  std::function<double(const ParallelStrategy&, const ParallelStrategy&)> pause_between = {};
  double step_deviation = 0;            // standard deviation of the logarithm of a step's seconds
  double rate_feedback = 0;             // the noise scale is divided by the learning rate to this power (0: unchanged)
  bool noise_follows_schedule = false;  // whether that is the schedule's rate or only the batch's factor
  // Standard deviation of the logarithm of a random factor on the noise scale. The factor is correlated over a thousand
  // steps and has no influence on the critical batch.
  double noise_drift = 0;
  double stalled_steps = 0;  // steps' worth of progress that a change of the batch costs
  double branch_error = 0;   // standard deviation of what a branch shows of ln SE, half of its variance common to all
  bool is_higher_rate_better = false;  // for branches of a larger batch
  double loss_of_other_rate = 0;       // in ln SE
  NormSpread spread;
  ScenarioEnd end;
  std::vector<double> milestones = {};  // progress values, ascending, at which the run's time is recorded
};

}  // namespace copus
