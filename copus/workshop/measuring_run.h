// Common parts of this directory's short runs, whose results do not depend on what the model learns.
#pragma once

#include <cstdint>
#include <string>

#include "copus/comm/world.h"
#include "copus/config/run_config.h"
#include "copus/orchestrator/observation.h"

namespace copus {

class Trainer;

// Random letters from a to z, the same at every call.
std::string random_letters(int64_t count);

// Returns the configuration of a run that never ends, on the text at `corpus`. The run trains in fp32, with one thread
// per rank, a constant learning rate, and all of the text as training data. Batch and layout are the defaults of
// RunConfig.
RunConfig endless_run(const ModelDescription& model, const std::string& corpus, int64_t sequence_length);

// Trains until the change to `target` has been tried on all ranks, and returns the trainer's report, whose `outcome`
// says whether the ranks have changed to `target`. Every rank calls this function. The change is announced some steps
// ahead, so that all preparation is complete when it is due.
SwitchReport change_configuration(Trainer& trainer, const World& world, const Configuration& target);

}  // namespace copus
