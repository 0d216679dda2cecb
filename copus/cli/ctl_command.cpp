// `copus ctl`: gives commands to a running job, which answers what it has done or why it refuses.
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "copus/base/error.h"
#include "copus/base/text/printable.h"
#include "copus/base/text/shell_word.h"
#include "copus/base/text/text_distance.h"
#include "copus/checkpoint/directory_lock.h"
#include "copus/cli/commands.h"
#include "copus/cli/option_checks.h"
#include "copus/cli/run_directory.h"
#include "copus/report/files/control_files.h"
#include "copus/report/files/run_summary.h"

namespace copus {

namespace {

namespace fs = std::filesystem;

struct CtlOptions {
  fs::path run_directory;
  ControlRequest request;
  std::string wait = "2m";
};

bool is_alive(const fs::path& run_directory) { return is_locked(run_directory / "checkpoints"); }

void check_request(const fs::path& run_directory, const ControlRequest& request) {
  static const std::vector<std::string> commands = {"pin", "unpin", "pause", "resume", "force", "status"};
  const auto is_command = [](const std::string& text) {
    return std::find(commands.begin(), commands.end(), text) != commands.end();
  };
  if (!is_command(request.command)) {
    if (is_command(run_directory.string())) {
      throw UserError(concat("copus ctl: the run directory comes first: write copus ctl ", shell_word(request.command),
                             " ", shell_word(run_directory.string()), " (see 'copus ctl --help')"));
    }
    throw UserError(concat("copus ctl: there is no command \"", request.command, "\"; ",
                           suggest(request.command, commands, "the commands are"), " (see 'copus ctl --help')"));
  }
  const bool needs_target = request.command == "force";
  if (needs_target && request.target.empty()) {
    throw UserError(
        "copus ctl RUN force: give the configuration to move to, such as d=2,t=1,p=2,B=32,b=4 (see 'copus ctl "
        "--help')");
  }
  if (!needs_target && !request.target.empty()) {
    throw UserError(concat("copus ctl RUN ", request.command, ": takes nothing more, got \"", request.target,
                           "\" (see 'copus ctl --help')"));
  }
  if (needs_target) read_configuration("force", request.target);
}

void check_run(const fs::path& run_directory) {
  check_is_run("ctl", run_directory);
  if (is_alive(run_directory)) return;
  const std::optional<RunSummary> summary = read_current_summary(run_directory);
  throw UserError(concat("the run in ", run_directory.string(), " is not running",
                         summary ? concat(": it has ended (", summary->ended, ") after step ", summary->steps) : "",
                         "; only a running job can be steered"));
}

int run(const CtlOptions& options) {
  check_request(options.run_directory, options.request);
  const std::chrono::duration<double> wait(read_duration("--wait", options.wait));
  check_run(options.run_directory);
  const ControlReply reply =
      ask_run(options.run_directory, options.request, wait, [&] { return is_alive(options.run_directory); });
  if (!reply.done) throw UserError(reply.message);
  std::cout << printable(reply.message) << '\n';
  return 0;
}

}  // namespace

void add_ctl(CLI::App& program, CommandAction& action) {
  auto options = std::make_shared<CtlOptions>();
  CLI::App& command = *program.add_subcommand("ctl", "Steer a running job: its batch, its layout, a pause");
  command.add_option("RUN_DIR", options->run_directory, "The run directory")->required();
  command
      .add_option(
          "COMMAND", options->request.command,
          "status; pin: stay in this configuration; unpin; pause: stand still; resume; force: move to TARGET and "
          "stay there")
      ->required();
  command.add_option(
      "TARGET", options->request.target,
      concat("Of force: what to change, as PART=VALUE,...; the rest stays. Parts: ", configuration_parts()));
  command.add_option("--wait", options->wait, "How long to wait for the answer (default: 2m)")->type_name("DURATION");
  command.footer(
      "The run looks for commands after every step. Exit codes: 0 done, 2 not done, with the reason.\n"
      "Examples:\n"
      "  copus ctl r1 force d=2,t=1,p=2,B=32      move to this layout and batch at the next step, and stay\n"
      "  copus ctl r1 force B=64,b=8              change the batch and micro-batch alone\n"
      "  copus ctl r1 unpin                       let the policy decide again\n"
      "  copus ctl r1 pause                       stand still until 'copus ctl r1 resume'");
  command.callback([options, &action] { action = [options] { return run(*options); }; });
}

}  // namespace copus
