// What the settings that change when a run is resumed do to its end, its schedule and its learning rate.
#pragma once

#include <string>
#include <vector>

#include "copus/config/run_config.h"
#include "copus/train/training_state.h"

namespace copus {

// One line for each of these that differs at the point that the run has reached: nothing of them changes unannounced.
// `state`: of the checkpoint that the run of `then` goes on from as `now` says, in the configuration `start`.
std::vector<std::string> describe_resume_effects(const RunConfig& then, const RunConfig& now,
                                                 const TrainingState& state, const Configuration& start);

}  // namespace copus
