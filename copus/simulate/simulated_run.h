// A whole run in a simulated world, in which a real controller decides: it sees noisy steps and norms, and its switches
// are carried out with the pauses that the world has.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "copus/config/run_config.h"
#include "copus/orchestrator/controller.h"
#include "copus/simulate/world.h"

namespace copus {

// When a run was at a milestone.
struct Arrival {
  double seconds = 0;
  double samples = 0;  // read so far
};

// What a run came to. Seconds are the world's true ones, without the noise of single steps, which no rule decides.
struct SimulatedRun {
  double seconds = 0;   // to the end; of the last step, the share that was needed
  double progress = 0;  // at the end
  int64_t steps = 0;
  int64_t relayouts = 0;
  int64_t batch_changes = 0;           // switches to another global batch; one may be a re-layout as well
  double pause_seconds = 0;            // within `seconds`
  Configuration last = {};             // that it ended in
  std::vector<Arrival> arrivals = {};  // at the milestones that it has passed
};

// Told of each decision, with the state before it.
struct SimulatedDecision {
  const Decision& decision;
  const TruthPiece& truth;
  double seconds;  // true ones so far
};
using DecisionListener = std::function<void(const SimulatedDecision&)>;

// Simulates a run in this world, with the policy and settings of `config`. It must begin in one of the world's
// configurations; a switch to one that the world does not have is vetoed for want of memory.
SimulatedRun simulate(const SimulatedWorld& world, const RunConfig& config, const DecisionListener& listener = {});

}  // namespace copus
