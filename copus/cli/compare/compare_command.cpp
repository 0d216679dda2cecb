// `copus compare`: trains the arms of an experiment with the same seeds, and reports the differences between the arms
// and how certain these differences are.
#include <csignal>
#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "copus/base/error.h"
#include "copus/base/files/durable_file.h"
#include "copus/base/text/json_text.h"
#include "copus/base/text/printable.h"
#include "copus/base/text/shell_word.h"
#include "copus/base/text/units.h"
#include "copus/checkpoint/directory_lock.h"
#include "copus/cli/commands.h"
#include "copus/cli/compare/experiment_directory.h"
#include "copus/cli/compare/experiment_runner.h"
#include "copus/cli/option_checks.h"
#include "copus/config/descriptions.h"
#include "copus/report/drawn/comparison.h"

namespace copus {

namespace {

namespace fs = std::filesystem;

constexpr int some_run_failed = 1;
constexpr int asked_to_stop = 75;  // after SIGTERM (apps/copus/program.h)
constexpr int interrupted = 130;   // after SIGINT

struct CompareOptions {
  std::string program;  // the name by which it was called
  std::string experiment;
  std::string directory;
  int64_t jobs = 1;
  bool dry_run = false;
  bool json = false;
};

const char* to_word(ExperimentRunState state) {
  switch (state) {
    case ExperimentRunState::to_do:
      return "to do";
    case ExperimentRunState::interrupted:
      return "interrupted";
    case ExperimentRunState::done:
      return "done";
  }
  return "";
}

std::vector<GroupChoice> choose_arms(const Experiment& experiment, const std::vector<RunOutcome>& screened) {
  std::vector<GroupChoice> choices;
  for (const std::string& name : experiment.contenders()) {
    if (!experiment.arms_of(name).empty()) choices.push_back(choose_arm(experiment, name, screened));
  }
  return choices;
}

bool is_done(const ExperimentDirectory& directory, const ExperimentRun& run) {
  return directory.state(run) == ExperimentRunState::done;
}

// Returns the runs of an experiment that are known so far: the screening runs, and once these are done also the runs to
// compare.
std::vector<ExperimentRun> known_runs(const ExperimentDirectory& directory) {
  const Experiment& experiment = directory.experiment();
  std::vector<ExperimentRun> runs = screening_runs(experiment);
  std::vector<RunOutcome> screened;
  for (const ExperimentRun& run : runs) {
    if (is_done(directory, run)) screened.push_back(read_outcome(directory.run_directory(run), run.arm, run.seed));
  }
  const std::vector<GroupChoice> choices =
      screened.size() == runs.size() ? choose_arms(experiment, screened) : std::vector<GroupChoice>();
  for (ExperimentRun& run : final_runs(experiment, choices)) runs.push_back(std::move(run));
  return runs;
}

// Lists the runs that would be made.
int list_runs(const ExperimentDirectory& directory, const CompareOptions& options) {
  const std::vector<ExperimentRun> runs = known_runs(directory);
  const size_t unknown = count_runs(directory.experiment()) - runs.size();
  std::vector<ExperimentRun> left;
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const ExperimentRun& run : runs) {
    const ExperimentRunState state = directory.state(run);
    if (state != ExperimentRunState::done) left.push_back(run);
    const std::optional<double> seconds = directory.wall_seconds(run);
    list.push_back({{"arm", run.arm}, {"seed", run.seed}, {"state", to_word(state)}, {"wall_seconds", nullptr}});
    if (seconds) list.back()["wall_seconds"] = *seconds;
    if (options.json) continue;
    std::cout << run.arm << ", seed " << run.seed << ": " << to_word(state)
              << (seconds ? concat(" in ", format_duration(*seconds)) : "") << '\n';
  }
  const std::optional<double> seconds = estimate_seconds(directory, left, unknown, options.jobs);
  if (options.json) {
    nlohmann::ordered_json object{
        {"runs", list}, {"not_chosen_yet", unknown}, {"runs_left", left.size() + unknown}, {"seconds_left", nullptr}};
    if (seconds) object["seconds_left"] = *seconds;
    std::cout << json_text(object, 2) << '\n';
    return 0;
  }
  if (unknown > 0) std::cout << "and " << unknown << " of arms that are chosen by then: to do\n";
  std::cout << left.size() + unknown << " of " << runs.size() + unknown << " runs left, " << options.jobs
            << " at a time: "
            << (seconds ? concat("about ", format_duration(*seconds))
                        : "how long, the first run that is done will tell")
            << '\n';
  return 0;
}

// Tells the user that the comparison was stopped and how to resume it. Returns the exit code.
int say_how_to_go_on(int signal, const CompareOptions& options) {
  std::cerr << "Stopped. The same command goes on: " << shell_word(options.program) << " compare "
            << shell_word(options.experiment)
            << (options.directory.empty() ? "" : " --dir " + shell_word(options.directory))
            << (options.jobs == 1 ? "" : concat(" --jobs ", options.jobs)) << '\n';
  return signal == SIGINT ? interrupted : asked_to_stop;
}

int run_experiment(const ExperimentDirectory& directory, const CompareOptions& options) {
  const Experiment& experiment = directory.experiment();
  create_directories_durably(directory.path());
  const DirectoryLock lock(directory.path());
  directory.check_runs();
  directory.record();

  std::ostream& people = options.json ? std::cerr : std::cout;
  ExperimentRunner runner(directory, options.jobs, [&](const std::string& line) {
    people << printable(line) << '\n' << std::flush;
  });
  const std::vector<ExperimentRun> screening = screening_runs(experiment);
  if (const int signal = runner.run(screening)) return say_how_to_go_on(signal, options);
  std::vector<RunOutcome> outcomes = runner.outcomes(screening);
  const std::vector<ExperimentRun> compared = final_runs(experiment, choose_arms(experiment, outcomes));
  if (const int signal = runner.run(compared)) return say_how_to_go_on(signal, options);
  for (RunOutcome& outcome : runner.outcomes(compared)) outcomes.push_back(std::move(outcome));

  const Comparison comparison = compare(experiment, outcomes);
  const std::string json = to_json(experiment, comparison);
  const fs::path results = directory.path() / "results.json";
  write_file_durably(results, json);
  std::cout << (options.json ? json : concat('\n', to_text(experiment, comparison), "Wrote ", results.string(), ".\n"));
  if (runner.failed().empty()) return 0;
  std::cerr << "copus: error: " << counted(std::ssize(runner.failed()), "run")
            << " failed; the same command tries again what failed, in " << directory.path().string() << '\n';
  return some_run_failed;
}

int run_compare(const CompareOptions& options) {
  const std::string text =
      read_named_file(options.experiment, "copus compare",
                      "an experiment, a TOML file (docs/comparing.md; see 'copus compare --help')");
  const Experiment experiment = parse_experiment(text, options.experiment);
  const std::string base_text =
      read_named_file(experiment.base, concat(options.experiment, ": base"), "the configuration that all runs share");
  check_arms_are_comparable(experiment, base_text, options.experiment);
  const fs::path path =
      options.directory.empty() ? fs::path("runs") / fs::path(options.experiment).stem() : fs::path(options.directory);
  const ExperimentDirectory directory(path, options.experiment, text, base_text);
  directory.check_place();
  if (!options.dry_run) return run_experiment(directory, options);
  directory.check_runs();
  return list_runs(directory, options);
}

}  // namespace

void add_compare(CLI::App& program, CommandAction& action) {
  auto options = std::make_shared<CompareOptions>();
  CLI::App& command = *program.add_subcommand("compare", "Train policies with the same seeds, and compare them");
  command.add_option("EXPERIMENT", options->experiment, "What to compare: a TOML file (docs/comparing.md)")->required();
  command
      .add_option("--dir", options->directory, "Where the runs and results go (default: runs/<experiment's file name>)")
      ->type_name("DIR");
  command.add_option("--jobs", options->jobs, "Runs at once (default: 1)")->check(at_least(1))->type_name("N");
  command.add_flag("--dry-run", options->dry_run, "Say what would run and about how long, and do nothing");
  command.add_flag("--json", options->json, "Print results.json (with --dry-run: the runs), and progress on stderr");
  command.footer(
      "Ctrl-C and SIGTERM stop it; the same command goes on, after any other end as well.\n"
      "Exit codes: 0 done, 1 a run failed, 2 a mistake in what was given, 75 SIGTERM, 130 Ctrl-C.\n"
      "Examples:\n"
      "  copus compare EXPERIMENT.toml --dry-run\n"
      "  copus compare EXPERIMENT.toml --jobs 2");
  command.callback([options, &program, &action] {
    options->program = program.get_name();
    action = [options] {
      std::signal(SIGPIPE, SIG_IGN);  // so that the comparison continues when nobody reads its output any more
      return run_compare(*options);
    };
  });
}

}  // namespace copus
