// How settings that change on resume affect the end of the run, its schedule and its learning rate.
#pragma once

#include <string>
#include <vector>

#include "copus/config/run_config.h"
#include "copus/train/step/training_state.h"

namespace copus {

// Returns one line for each of these effects that makes a difference at this point of the run, so that the user learns
// of all of them. `state` is the state in the checkpoint. The run of `then` resumes from it with `now`, in the
// configuration `start`.
std::vector<std::string> describe_resume_effects(const RunConfig& then, const RunConfig& now,
                                                 const TrainingState& state, const Configuration& start);

}  // namespace copus
