// The commands of this room (as cli/commands.h): they measure and test Copus and the machine that it runs on.
#pragma once

#include <string>
#include <vector>

#include "copus/cli/commands.h"

namespace copus {

void add_profile(CLI::App& program, Action& action);
void add_selftest(CLI::App& program, Action& action, const std::vector<std::string>& arguments);
void add_bench(CLI::App& program, Action& action);

// The command `copus bench` itself, and those under it that need no libtorch: comm, model, decide.
CLI::App& add_bench_group(CLI::App& program);
void add_benches_without_libtorch(CLI::App& bench, Action& action);

// Under `copus bench`, by the names of its commands.
void add_step_bench(CLI::App& bench, Action& action);
void add_probe_bench(CLI::App& bench, Action& action);  // copus bench gns
void add_comm_bench(CLI::App& bench, Action& action);
void add_model_bench(CLI::App& bench, Action& action);
void add_decide_bench(CLI::App& bench, Action& action);
void add_relayout_bench(CLI::App& bench, Action& action);

}  // namespace copus
