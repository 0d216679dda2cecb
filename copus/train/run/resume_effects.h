// How settings that change on resume affect the run's end, schedule and learning rate.
#pragma once

#include <string>
#include <vector>

#include "copus/config/run_config.h"
#include "copus/train/step/training_state.h"

namespace copus {

// Describes, in one line each, how changed settings affect the rest of the run. `then` are the settings before the
// resume, `now` the settings after it, `state` is the checkpoint's state. `start` is the configuration in which the run
// resumes.
std::vector<std::string> describe_resume_effects(const RunConfig& then, const RunConfig& now,
                                                 const TrainingState& state, const Configuration& start);

}  // namespace copus
