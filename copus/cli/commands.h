// The commands of this room, one source file each. A command adds itself to the command line. If the user asks for it,
// it puts into `action` a function that does the work and returns the exit code. `arguments` is the command line behind
// the program's name, for a command that starts this program again.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <vector>

#include "copus/report/decision_log.h"

namespace copus {

using CommandAction = std::function<int()>;

// `write_page` draws a run that has ended.
void add_train(CLI::App& program, CommandAction& action, const std::vector<std::string>& arguments,
               const PageWriter& write_page);
void add_generate(CLI::App& program, CommandAction& action);
void add_convert(CLI::App& program, CommandAction& action);
void add_ctl(CLI::App& program, CommandAction& action);
void add_watch(CLI::App& program, CommandAction& action);
void add_report(CLI::App& program, CommandAction& action);
void add_replay(CLI::App& program, CommandAction& action);
void add_compare(CLI::App& program, CommandAction& action);
void add_gns(CLI::App& program, CommandAction& action);
void add_calibrate(CLI::App& program, CommandAction& action);
void add_plan(CLI::App& program, CommandAction& action);
void add_models(CLI::App& program, CommandAction& action);
void add_clusters(CLI::App& program, CommandAction& action);
void add_simulate(CLI::App& program, CommandAction& action);

// Adds a stand-in for a command that a build without libtorch does not have, so that the answer is helpful. `program`
// is the words before its name: "copus bench".
void add_missing(CLI::App& parent, CommandAction& action, const std::string& program, const std::string& name);

}  // namespace copus
