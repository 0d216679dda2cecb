// Runs of the job that a run on the modelled clock stands for, at its own size: its cluster, candidates and policy are
// those of the run's configuration, and its losses those of a published law. Nothing of them is measured.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "copus/config/run_config.h"
#include "copus/simulate/hindsight.h"
#include "copus/simulate/published_law.h"
#include "copus/simulate/world.h"

namespace copus {

// What is asked, and taken for true.
struct LawQuestion {
  PublishedLaw law = PublishedLaw::kaplan;
  WorthShape worth = WorthShape::hyperbola;
  double truth_alpha = 0;                    // of what a larger learning rate brings (RateGain)
  double calibration = 2;                    // the true critical batch over the noise scale that steps show
  std::optional<double> pause_seconds = {};  // of every re-layout; empty: as its plan takes
  double tokens = 0;                         // to the end of the run, in a batch of B -> 0; 0: 20 for each parameter
  std::vector<double> losses = {};           // nats per token: when a run is there is asked, besides its end
};

// A loss on the way, and who would have been there first.
struct LawTarget {
  double loss = 0;
  double progress = 0;        // samples of a batch of B -> 0
  double critical_batch = 0;  // the true one there, in samples
  StraightRun best_static;    // the fastest to this target
  // Of the fastest sequence; where the pauses are those of plans, it has none, so that nothing is faster.
  double clairvoyant_seconds = 0;
};

struct LawScenario {
  PublishedLoss loss;
  double tokens = 0;               // to the end
  SimulatedWorld world;            // its milestones are the targets
  std::vector<LawTarget> targets;  // on the way down; the last one is the end
};

// Throws UserError where a run is on another clock, or lacks what only a run on the modelled clock has.
void check_is_modelled(const RunConfig& config);

// Makes the world of a run. Progress counts samples as truth.h does: the law's tokens are those of a batch of B -> 0
// or, where the learning rate brings something, of the batch that the rate is for, as far as noise allows. Throws
// UserError where the run is not on the modelled clock, cannot begin, or never has one of the losses.
LawScenario make_law_scenario(const RunConfig& config, const LawQuestion& question);

// Returns a run's configuration as a simulated run has it: its samples are those of the job; it has no limit but one in
// tokens, twice those that its first batch needs to the end, as a user gives it who stops by the loss; and it spares
// time unless adapt.objective says otherwise. Throws UserError where its policy goes by the share of the run that is
// done, which such a limit does not say, where it only advises, and where the configuration that the policy begins in
// does not fit into the true devices.
RunConfig as_simulated(const RunConfig& config, const LawScenario& scenario);

}  // namespace copus
