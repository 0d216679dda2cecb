// Declares the commands of this directory (see also cli/commands.h), which measure and test Copus and its machine. A
// command that measures with several ranks adds the function that each rank executes to `jobs`.
#pragma once

#include "copus/cli/commands.h"
#include "copus/workshop/run_ranks.h"

namespace copus {

void add_profile(CLI::App& program, CommandAction& action, RankJobs& jobs);
void add_doctor(CLI::App& program, CommandAction& action);
// The hidden command of copus-torch for doctor's checks of libtorch and GPUs. Adds nothing without libtorch.
void add_doctor_of_trainer(CLI::App& program, CommandAction& action);
void add_selftest(CLI::App& program, CommandAction& action, RankJobs& jobs);
// The hidden command that run_ranks starts, which does one of the jobs.
void add_run_rank(CLI::App& program, CommandAction& action, RankJobs jobs);

// Commands under `copus bench`, by name.
void add_step_bench(CLI::App& bench, CommandAction& action);
void add_probe_bench(CLI::App& bench, CommandAction& action, RankJobs& jobs);  // copus bench gns
void add_comm_bench(CLI::App& bench, CommandAction& action, RankJobs& jobs);
void add_model_bench(CLI::App& bench, CommandAction& action);
void add_decide_bench(CLI::App& bench, CommandAction& action);
void add_regret_bench(CLI::App& bench, CommandAction& action);
void add_agreement_bench(CLI::App& bench, CommandAction& action);
void add_relayout_bench(CLI::App& bench, CommandAction& action, RankJobs& jobs);

// One-line help of the commands that need libtorch. Both programs print it.
inline constexpr const char* about_step_bench = "One training step: tokens/s, MFU, memory, time by part";
inline constexpr const char* about_probe_bench = "What measuring the gradient noise scale costs a training step";
inline constexpr const char* about_relayout_bench =
    "The pause of a change of layout, beside plain copies and beside a checkpoint with a restart";
inline constexpr const char* about_profile = "Measure this machine, or configurations of a run on it";
inline constexpr const char* about_selftest =
    "Check the ranks, links and layouts of a job here, in about a minute: groups, bandwidths, re-layouts";

}  // namespace copus
