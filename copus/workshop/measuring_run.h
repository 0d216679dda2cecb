// Common parts of this room's short runs, in which it does not matter what is learned.
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

// A run on the text at `corpus` that never ends: in fp32, with one thread per rank, a constant learning rate, and all
// of the text as training data. Batch and layout are those of a new RunConfig.
RunConfig endless_run(const ModelDescription& model, const std::string& corpus, int64_t sequence_length);

// Trains until all ranks have changed to `target` or have failed to, as the report says. Every rank calls it. The
// change is announced some steps ahead, so that preparation is complete when it is due.
SwitchReport change_configuration(Trainer& trainer, const World& world, const Configuration& target);

}  // namespace copus
