// Simulates the job that a run on the modelled clock describes, without training. Cluster, candidates and policy come
// from the run's configuration, and losses from a published scaling law.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "copus/config/run_config.h"
#include "copus/simulate/hindsight.h"
#include "copus/simulate/published_law.h"
#include "copus/simulate/world.h"

namespace copus {

// The law to simulate by, and the assumed true values.
struct LawQuestion {
  PublishedLaw law = PublishedLaw::kaplan;
  WorthShape worth = WorthShape::hyperbola;
  double truth_alpha = 0;                    // of the gain from a larger learning rate (RateGain)
  double calibration = 2;                    // true critical batch / noise scale that the steps show
  std::optional<double> pause_seconds = {};  // of every re-layout; empty: as its plan predicts
  double tokens = 0;                // to the end of the run, for a vanishing batch (B -> 0); 0: 20 per parameter
  std::vector<double> losses = {};  // nats per token; the times at which the run reaches them are recorded
};

// A loss that the run reaches, and the best possible times to reach it.
struct LawTarget {
  double loss = 0;
  double progress = 0;        // samples that a vanishing batch (B -> 0) needs
  double critical_batch = 0;  // the true one there, in samples
  StraightRun best_static;    // the fastest to this target
  // Seconds of the fastest sequence of configurations. If pauses come from plans, they are not counted here, so this is
  // a lower bound.
  double clairvoyant_seconds = 0;
};

struct LawScenario {
  PublishedLoss loss;
  double tokens = 0;               // to the end
  SimulatedWorld world;            // its milestones are the targets
  std::vector<LawTarget> targets;  // in the order in which the loss falls; the last one is the end
};

// Throws UserError if a run uses another clock than the modelled one, or lacks settings that the modelled clock needs.
void check_is_modelled(const RunConfig& config);

// Makes the simulated world of a run. The tokens in the law are taken as the tokens that a vanishing batch needs
// (progress in truth.h). If larger batches gain from larger learning rates, they are instead the tokens needed at the
// batch for which the rate was tuned, which must be far below the critical batch. Throws UserError if the run is not on
// the modelled clock, cannot begin, or never reaches one of the losses.
LawScenario make_law_scenario(const RunConfig& config, const LawQuestion& question);

// Returns the configuration of a simulated run, with the job's own samples. The run ends at a loss. Its only other
// limit is twice the number of tokens that the first batch needs to reach that loss, as a user might set it. The
// objective is to save time unless adapt.objective says otherwise.
//
// Throws UserError for a policy that depends on the completed fraction of the run, because a run that ends at a loss
// has no such fraction. Also throws UserError for a run that only advises, or if the policy's first configuration does
// not fit into the memory of the true devices.
RunConfig as_simulated(const RunConfig& config, const LawScenario& scenario);

}  // namespace copus
