// Defines the true values of one simulated run, which do not depend on the policy, and the noise of its steps.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "copus/simulate/gradient_norms.h"
#include "copus/simulate/hindsight.h"
#include "copus/simulate/truth.h"

namespace copus {

struct SimulatedWorld {
  uint64_t seed = 0;  // for the noise of the steps
  Truth truth;
  TrueSeconds seconds;  // per step, for every candidate that fits into the true devices; a switch to another is vetoed
  double pause_seconds = 0;  // of a re-layout
  // Seconds of a re-layout from one strategy to another, used instead of pause_seconds if not empty. Called on one
  // thread, because the function may cache its results without a lock.
  std::function<double(const ParallelStrategy&, const ParallelStrategy&)> pause_between = {};
  double step_deviation = 0;            // standard deviation of the logarithm of a step's seconds
  double rate_feedback = 0;             // the noise scale is divided by the learning rate to this power (0: unchanged)
  bool noise_follows_schedule = false;  // of the schedule; false: only the batch's factor
  // Standard deviation of the logarithm of a random factor on the noise scale, which is correlated over a thousand
  // steps. The factor does not affect the critical batch.
  double noise_drift = 0;
  double stalled_steps = 0;  // the progress of so many steps is lost at a change of the batch
  double branch_error = 0;   // standard deviation of a branch's ln SE; half of its variance is common to all branches
  NormSpread spread;
  ScenarioEnd end;
  std::vector<double> milestones = {};  // progress values, ascending, at which the run's time is recorded
};

}  // namespace copus
