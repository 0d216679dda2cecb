// A whole job as one process sees it: the process is the whole job, is one of its ranks, or starts the ranks.
#pragma once

#include <string>
#include <vector>

#include "copus/train/run/run_plan.h"

namespace copus {

// Trains as `request` says. Returns the exit code of the process: the code of RunEnd, or the code of a user's mistake
// on a rank that does not report it itself. Ranks that a launcher has started join each other. A process that was not
// started as a rank trains alone or, if the layout has several ranks, starts them from this program with `arguments`.
// Before that it finds all mistakes that can be found beforehand. `max_seconds` limits the wall-clock time since the
// job began (job_start.h); 0: no limit. Throws as plan_run, join_world and run_training do.
int run_job(const RunRequest& request, double max_seconds, const std::vector<std::string>& arguments);

}  // namespace copus
