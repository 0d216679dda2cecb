// Simulates a whole run in a simulated world. A real controller makes the decisions: it gets noisy step times and
// gradient norms. The world determines how long the run pauses for a switch.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "copus/config/run_config.h"
#include "copus/orchestrator/controller/controller.h"
#include "copus/simulate/world.h"

namespace copus {

// When a run reached a milestone.
struct Arrival {
  double seconds = 0;
  double samples = 0;  // samples read so far
};

// The result of a run. Seconds are the world's true values, without the noise of single steps, which no rule can
// affect.
struct SimulatedRun {
  double seconds = 0;   // of the whole run; of the last step only the fraction up to the end counts
  double progress = 0;  // at the end
  int64_t steps = 0;
  int64_t relayouts = 0;
  int64_t batch_changes = 0;           // switches to another global batch, including re-layouts that also change it
  int64_t calibrations = 0;            // by branches
  double pause_seconds = 0;            // within `seconds`, for re-layouts and calibrations
  Configuration last = {};             // the configuration at the end
  std::vector<Arrival> arrivals = {};  // at the milestones that it has passed
};

// A decision, with the state before it, for an observer.
struct SimulatedDecision {
  const Decision& decision;
  const TruthPiece& truth;
  double seconds;  // true seconds so far
};
using DecisionListener = std::function<void(const SimulatedDecision&)>;

// Simulates a run in this world, with the policy and settings of `config`. The run must begin in one of the world's
// configurations. A switch to a configuration that the world does not have is vetoed as too large for memory.
SimulatedRun simulate(const SimulatedWorld& world, const RunConfig& config, const DecisionListener& listener = {});

}  // namespace copus
