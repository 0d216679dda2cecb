// A job as one of its processes sees it: the process is the whole job, one rank, or the launcher of the ranks.
#pragma once

#include <string>
#include <vector>

#include "copus/train/run/run_plan.h"

namespace copus {

// Trains as `request` says, and returns the process's exit code. This is the code of RunEnd, or of a user's mistake if
// another rank reports it. Ranks that a launcher has started join each other. Any other process trains alone or, for
// layouts with several ranks, starts the ranks from this program with `arguments`, after checking for all mistakes that
// can be found without training. `max_seconds` limits the wall-clock time since the job began (job_start.h); 0: no
// limit. Throws as plan_run, join_world and run_training do.
int run_job(const RunRequest& request, double max_seconds, const std::vector<std::string>& arguments);

}  // namespace copus
