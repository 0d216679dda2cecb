// What a run is going to take, told before it begins: memory and cores against what this machine has, and time.
#pragma once

#include <optional>
#include <string>

#include "copus/config/run_config.h"
#include "copus/train/run_plan.h"

namespace copus {

// Judges whether the memory that is `left` will do for all ranks, which train on this machine's processor. Returns what
// the user is to be warned of where it may be short. Throws UserError that names what would fit where it certainly is.
std::optional<std::string> check_memory(const RunConfig& config, const Configuration& configuration, double left);

// Warns of ranks that take turns; empty where each of `ranks` has a core.
std::optional<std::string> why_ranks_take_turns(int64_t ranks, int64_t cores);

// Checks memory and cores for a run whose ranks are all on this machine, and tells the user what to expect of them.
// Throws UserError where memory is short.
void check_machine(const RunPlan& plan);

// Tells what `copus train --dry-run` tells: model, data, memory of each pipeline rank, speed, time to the end. Opens
// the data and writes no file. Throws UserError for mistakes and, where this machine is to hold all ranks
// (`checks_machine`), as check_machine does.
void tell_forecast(RunPlan plan, bool checks_machine);

}  // namespace copus
