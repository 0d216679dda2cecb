// `copus report`: writes the web page of one or several runs, or of an experiment.
#include <filesystem>
#include <iostream>
#include <memory>
#include <vector>

#include "copus/base/error.h"
#include "copus/cli/commands.h"
#include "copus/cli/run_directory.h"
#include "copus/report/drawn/html_report.h"

namespace copus {

namespace {

namespace fs = std::filesystem;

struct ReportOptions {
  std::vector<fs::path> directories;
  fs::path output;
};

int write_report(const ReportOptions& options) {
  const std::vector<fs::path>& directories = options.directories;
  fs::path file = options.output;
  if (file.empty()) file = directories.size() == 1 ? directories.front() / "report.html" : fs::path("report.html");
  for (const fs::path& directory : directories) {
    if (directories.size() > 1 && is_experiment_directory(directory)) {
      throw UserError(concat(directory.string(), " is an experiment; give it alone, or runs of it: ",
                             (directory / "runs" / "ARM" / "seed-N").string()));
    }
  }
  for (const fs::path& directory : directories) {
    if (!is_experiment_directory(directory)) check_is_run("report", directory, "run.jsonl");
  }
  if (is_experiment_directory(directories.front())) {
    write_experiment_report(directories.front(), file);
  } else {
    write_html_report(directories, file);
  }
  std::cout << "Wrote " << file.string() << ".\n";
  return 0;
}

}  // namespace

void add_report(CLI::App& program, CommandAction& action) {
  auto options = std::make_shared<ReportOptions>();
  CLI::App& command = *program.add_subcommand(
      "report", "Write a web page of a run, finished or not, of several beside each other, or of an experiment");
  command
      .add_option("DIR", options->directories,
                  "Run directories, or one directory of `copus compare` with its results so far")
      ->required();
  command
      .add_option("--output", options->output,
                  "The page to write (default: report.html in the directory; of several runs, here)")
      ->type_name("FILE");
  command.footer(
      "Examples:\n"
      "  copus report runs/r1\n"
      "  copus report runs/r1 runs/r2 --output both.html\n"
      "  copus report runs/my-experiment");
  command.callback([options, &action] { action = [options] { return write_report(*options); }; });
}

}  // namespace copus
