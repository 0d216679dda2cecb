// A whole job as one process sees it: this process is all of it, is one of its ranks, or starts the ranks.
#pragma once

#include <string>
#include <vector>

#include "copus/train/run_plan.h"

namespace copus {

// Trains what `request` asks for and returns the exit code of the process: that of RunEnd, or that of a user's mistake
// on a rank other than the one that reports it. Ranks that a launcher has started join each other. A process that was
// not started as a rank trains alone, or starts ranks of this program with `arguments` where the layout has several;
// all mistakes that can be found beforehand are found first. Throws as plan_run, join_world and run_training do.
// `max_seconds`: of wall clock since the job began (job_start.h); 0: no limit.
int run_job(const RunRequest& request, double max_seconds, const std::vector<std::string>& arguments);

}  // namespace copus
