// The file of `copus plan --write`: a run in the fastest layout of a plan, complete except for its data.
#pragma once

#include <filesystem>
#include <string>

#include "copus/plan/plan.h"

namespace copus {

// Checks that `copus train` could run the planned job, and that no file would be overwritten. Throws UserError.
void check_run_file(const std::filesystem::path& path, const PlanQuestion& question);

// Writes the run with the first layout for the plan's batch. `model` is the model's name in the run: a path or a name.
void write_run_file(const std::filesystem::path& path, const std::string& model, const PlanQuestion& question,
                    const PlannedConfiguration& planned);

}  // namespace copus
