// Forecasts what a run will need, before it begins: memory and cores, compared with this machine, and time.
#pragma once

#include <optional>
#include <string>

#include "copus/config/run_config.h"
#include "copus/train/run/run_plan.h"

namespace copus {

// Returns a warning if `left` bytes of memory may be too few for all ranks, which train on this machine's CPU. If they
// certainly are, throws UserError, which names alternatives that would fit.
std::optional<std::string> check_memory(const RunConfig& config, const Configuration& configuration, double left);

// Returns a warning if `ranks` ranks share fewer cores; empty if each has one.
std::optional<std::string> why_ranks_take_turns(int64_t ranks, int64_t cores);

// Checks memory and cores for a run with all ranks on this machine, and prints what to expect. Throws UserError if
// memory does not suffice.
void check_machine(const RunPlan& plan);

// Prints the report of `copus train --dry-run`: model, data, memory of each pipeline rank, speed, time to the end.
// Opens the data and writes no file. Throws UserError for mistakes. With `checks_machine`, for a run with all ranks on
// this machine, also throws as check_machine does.
void tell_forecast(RunPlan plan, bool checks_machine);

}  // namespace copus
