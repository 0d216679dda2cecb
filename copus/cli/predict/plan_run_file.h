// Writes the file of `copus plan --write`: the configuration of a run in the plan's fastest layout. Only the data are
// missing.
#pragma once

#include <filesystem>
#include <string>

#include "copus/plan/plan.h"

namespace copus {

// Throws UserError if `copus train` could not run the planned job, or if a file would be overwritten.
void check_run_file(const std::filesystem::path& path, const PlanQuestion& question);

// Writes the run with the first layout for the plan's batch. `model` is the model's name in the run: a path or a name.
void write_run_file(const std::filesystem::path& path, const std::string& model, const PlanQuestion& question,
                    const PlannedConfiguration& planned);

}  // namespace copus
