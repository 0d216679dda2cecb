// The commands of this room (as cli/commands.h): they measure and test Copus and the machine that it runs on. A command
// that measures with several ranks adds to `jobs` what each of them does.
#pragma once

#include "copus/cli/commands.h"
#include "copus/workshop/run_ranks.h"

namespace copus {

void add_profile(CLI::App& program, CommandAction& action, RankJobs& jobs);
void add_selftest(CLI::App& program, CommandAction& action, RankJobs& jobs);
// The hidden command that run_ranks starts, which does one of the jobs.
void add_run_rank(CLI::App& program, CommandAction& action, RankJobs jobs);

// Under `copus bench`, by the names of its commands.
void add_step_bench(CLI::App& bench, CommandAction& action);
void add_probe_bench(CLI::App& bench, CommandAction& action, RankJobs& jobs);  // copus bench gns
void add_comm_bench(CLI::App& bench, CommandAction& action, RankJobs& jobs);
void add_model_bench(CLI::App& bench, CommandAction& action);
void add_decide_bench(CLI::App& bench, CommandAction& action);
void add_regret_bench(CLI::App& bench, CommandAction& action);
void add_agreement_bench(CLI::App& bench, CommandAction& action);
void add_relayout_bench(CLI::App& bench, CommandAction& action, RankJobs& jobs);

}  // namespace copus
