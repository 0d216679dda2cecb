// What is true of one simulated run, whoever decides in it, and what its steps show.
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
  TrueSeconds seconds;       // of the steps of every candidate that fits into the true devices; others are vetoed
  double pause_seconds = 0;  // of a re-layout
  // Seconds of a re-layout from one strategy to another, in place of pause_seconds; empty: that. For one thread, since
  // what answers may remember its answers without a lock.
  std::function<double(const ParallelStrategy&, const ParallelStrategy&)> pause_between = {};
  double step_deviation = 0;            // standard deviation of the logarithm of a step's seconds
  double rate_feedback = 0;             // the noise scale falls by the learning rate to this power (0: not at all)
  bool noise_follows_schedule = false;  // whether the schedule of the rate counts there, or only the batch's factor
  // Standard deviation of the logarithm of a factor on the noise scale that has a memory of a thousand steps, and that
  // says nothing about the critical batch.
  double noise_drift = 0;
  double stalled_steps = 0;  // steps' worth of progress that a change of the batch costs
  NormSpread spread;
  ScenarioEnd end;
  std::vector<double> milestones = {};  // progresses, ascending: when a run is there is noted
};

}  // namespace copus
