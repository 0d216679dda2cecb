// How settings that change on resume affect the run's end, schedule and learning rate.
#pragma once

#include <string>
#include <vector>

#include "copus/config/run_config.h"
#include "copus/train/step/training_state.h"

namespace copus {

// Returns one line for each such effect at this point of the run. `state`: from the checkpoint. A run with the settings
// `then` resumes with the settings `now`, in the configuration `start`.
std::vector<std::string> describe_resume_effects(const RunConfig& then, const RunConfig& now,
                                                 const TrainingState& state, const Configuration& start);

}  // namespace copus
