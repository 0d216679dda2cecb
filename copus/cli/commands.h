// Declares the commands of this directory, each of which has its own source file. A command adds itself to the command
// line. If the user types the command, the command sets `action` to a function that does the work and returns the exit
// code. `arguments` is the command line after the program's name, for commands that start this program again.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <vector>

#include "copus/report/logs/decision_log.h"

namespace copus {

using CommandAction = std::function<int()>;

// `write_page` draws the page of a finished run.
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

// One-line help of the commands that need libtorch. Both programs, `copus` and `copus-torch`, print it.
inline constexpr const char* about_generate = "Let a trained model continue a text";
inline constexpr const char* about_gns = "Measure the gradient noise scale of a stored model";
inline constexpr const char* about_calibrate = "Find what a batch is worth to a run, by short branches of it";

// Adds, to the program without libtorch, a command that needs libtorch. The command runs copus-torch (with_libtorch.h),
// or reports that copus-torch is missing. `program` is what the user types before the command's name, for example
// "copus bench".
void add_with_libtorch(CLI::App& parent, CommandAction& action, const std::string& program, const std::string& name,
                       const char* about);

}  // namespace copus
