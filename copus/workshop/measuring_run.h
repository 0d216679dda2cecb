// What the short runs of this room have in common: in none of them does it matter what is learned.
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

// A run on the text at `corpus` that never comes to its end, in fp32, with one thread a rank and a constant learning
// rate, all of the text being trained on. Batch and layout are those of a new RunConfig.
RunConfig endless_run(const ModelDescription& model, const std::string& corpus, int64_t sequence_length);

// Trains until all ranks have changed to `target`, or have failed to, as the report says. Every rank calls it. The
// change is announced some steps before, so that nothing is left to be prepared when it comes.
SwitchReport change_configuration(Trainer& trainer, const World& world, const Configuration& target);

}  // namespace copus
