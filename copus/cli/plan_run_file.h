// The file that `copus plan --write` leaves: a run in the fastest layout of a plan, but for the data.
#pragma once

#include <filesystem>
#include <string>

#include "copus/plan/plan.h"

namespace copus {

// Checks that `copus train` could run what the plan is of, and that nothing would be overwritten. Throws UserError.
void check_run_file(const std::filesystem::path& path, const PlanQuestion& question);

// Writes the run of the first layout of the plan's batch. `model` is what a run calls the model: a path or a name.
void write_run_file(const std::filesystem::path& path, const std::string& model, const PlanQuestion& question,
                    const PlannedConfiguration& planned);

}  // namespace copus
