// Simulates, at full size, the job that a run on the modelled clock represents. Cluster, candidates and policy come
// from the run's configuration, and losses from a published law. Nothing is measured.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "copus/config/run_config.h"
#include "copus/simulate/hindsight.h"
#include "copus/simulate/published_law.h"
#include "copus/simulate/world.h"

namespace copus {

// The question, and the assumed true values.
struct LawQuestion {
  PublishedLaw law = PublishedLaw::kaplan;
  WorthShape worth = WorthShape::hyperbola;
  double truth_alpha = 0;                    // of the gain from a larger learning rate (RateGain)
  double calibration = 2;                    // the true critical batch / the noise scale that steps show
  std::optional<double> pause_seconds = {};  // of every re-layout; empty: as its plan predicts
  double tokens = 0;                         // to the end of the run, in a batch of B -> 0; 0: 20 per parameter
  std::vector<double> losses = {};           // nats per token: the run reports when it reaches them
};

// A loss on the way, and the best possible times to reach it.
struct LawTarget {
  double loss = 0;
  double progress = 0;        // samples of a batch of B -> 0
  double critical_batch = 0;  // the true one there, in samples
  StraightRun best_static;    // the fastest to this target
  // Seconds of the fastest sequence. If pauses come from plans, this sequence has no pauses, so nothing is faster.
  double clairvoyant_seconds = 0;
};

struct LawScenario {
  PublishedLoss loss;
  double tokens = 0;               // to the end
  SimulatedWorld world;            // its milestones are the targets
  std::vector<LawTarget> targets;  // in the order in which the loss falls; the last one is the end
};

// Throws UserError if a run is on another clock, or lacks settings that a run on the modelled clock has.
void check_is_modelled(const RunConfig& config);

// Makes the simulated world of a run. Progress is counted as in truth.h: the law's tokens are the tokens that a
// vanishing batch needs. With a gain from larger learning rates, they are instead the tokens needed by the batch for
// which the rate was tuned, as long as this batch is far below the critical batch. Throws UserError if the run is not
// on the modelled clock, cannot begin, or never reaches one of the losses.
LawScenario make_law_scenario(const RunConfig& config, const LawQuestion& question);

// Returns the configuration of a simulated run, with the job's own samples. The only limit is a number of tokens: twice
// the number that the first batch needs to reach the end. A user who stops a run by its loss would set such a limit.
// The objective is to save time unless adapt.objective says otherwise. Throws UserError for a policy that depends on
// the completed fraction of the run (this limit does not define it), for a run that only advises, and if the policy's
// first configuration does not fit into the true devices.
RunConfig as_simulated(const RunConfig& config, const LawScenario& scenario);

}  // namespace copus
