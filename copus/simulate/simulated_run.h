// A whole run of a scenario, in which a real controller decides: it sees noisy steps and norms, and its switches are
// carried out with the pauses that the scenario has.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "copus/config/run_config.h"
#include "copus/orchestrator/controller.h"
#include "copus/simulate/scenario.h"

namespace copus {

// What a run came to. Seconds are the scenario's true ones, without the noise of single steps, which no rule decides.
struct SimulatedRun {
  double seconds = 0;   // to the end; of the last step, the share that was needed
  double progress = 0;  // at the end
  int64_t steps = 0;
  int64_t relayouts = 0;
  int64_t batch_changes = 0;  // switches of batch or micro-batch alone
  double pause_seconds = 0;   // within `seconds`
  Configuration last = {};    // that it ended in
};

// Told of each decision, with the state before it.
struct SimulatedDecision {
  const Decision& decision;
  const TruthPiece& truth;
  double seconds;  // true ones so far
};
using DecisionListener = std::function<void(const SimulatedDecision&)>;

// Runs the scenario. `config` is the scenario's, with the policy and settings of a rule in [adapt] and [noise_scale];
// its candidates must be the scenario's.
SimulatedRun simulate(const Scenario& scenario, const RunConfig& config, const DecisionListener& listener = {});

}  // namespace copus
