#include "copus/cli/compare/experiment_runner.h"

#include <algorithm>
#include <csignal>
#include <fstream>
#include <set>
#include <utility>

#include "copus/base/error.h"
#include "copus/base/process/monotonic_seconds.h"
#include "copus/base/process/stop_signals.h"
#include "copus/base/text/units.h"

namespace copus {

namespace {

namespace fs = std::filesystem;

bool has_trained(const fs::path& run_directory) {
  std::error_code error;
  const auto bytes = fs::file_size(run_directory / "run.jsonl", error);
  return !error && bytes > 0;
}

// Finds a failed process's message, the last line that it printed.
std::string last_line(const fs::path& log) {
  std::ifstream file(log);
  std::string last;
  for (std::string line; std::getline(file, line);) {
    if (!line.empty()) last = line;
  }
  constexpr std::string_view prefix = "copus: error: ";
  return last.starts_with(prefix) ? last.substr(prefix.size()) : last;
}

std::string full_name(const ExperimentRun& run) { return concat(run.arm, ", seed ", run.seed); }

bool same(const ExperimentRun& one, const ExperimentRun& other) {
  return one.arm == other.arm && one.seed == other.seed;
}

double mean_of(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

}  // namespace

std::vector<ExperimentRun> screening_runs(const Experiment& experiment) {
  std::vector<ExperimentRun> runs;
  for (const int64_t seed : experiment.screening_seeds) {
    for (const ExperimentArm& arm : experiment.arms) {
      if (!arm.group.empty()) runs.push_back({arm.name, seed});
    }
  }
  return runs;
}

std::vector<ExperimentRun> final_runs(const Experiment& experiment, const std::vector<GroupChoice>& choices) {
  std::vector<ExperimentRun> runs;
  for (const int64_t seed : experiment.seeds) {
    for (const std::string& name : experiment.contenders()) {
      if (experiment.arms_of(name).empty()) {
        runs.push_back({name, seed});
        continue;
      }
      const auto choice = std::find_if(choices.begin(), choices.end(),
                                       [&](const GroupChoice& candidate) { return candidate.group == name; });
      if (choice != choices.end() && !choice->chosen.empty()) runs.push_back({choice->chosen, seed});
    }
  }
  return runs;
}

size_t count_runs(const Experiment& experiment) {
  return screening_runs(experiment).size() + experiment.contenders().size() * experiment.seeds.size();
}

std::optional<double> estimate_seconds(const ExperimentDirectory& directory, const std::vector<ExperimentRun>& left,
                                       size_t unknown, int64_t jobs) {
  const Experiment& experiment = directory.experiment();
  std::set<int64_t> seeds(experiment.seeds.begin(), experiment.seeds.end());
  seeds.insert(experiment.screening_seeds.begin(), experiment.screening_seeds.end());
  std::map<std::string, std::vector<double>> known;
  std::vector<double> all;
  for (const ExperimentArm& arm : experiment.arms) {
    for (const int64_t seed : seeds) {
      const std::optional<double> seconds = directory.wall_seconds({arm.name, seed});
      if (!seconds) continue;
      known[arm.name].push_back(*seconds);
      all.push_back(*seconds);
    }
  }
  if (all.empty()) return std::nullopt;
  double sum = static_cast<double>(unknown) * mean_of(all);
  for (const ExperimentRun& run : left) {
    const auto of_arm = known.find(run.arm);
    sum += mean_of(of_arm != known.end() ? of_arm->second : all);
  }
  const auto together = static_cast<double>(std::max<size_t>(1, std::min<size_t>(jobs, left.size() + unknown)));
  return sum / together;
}

ExperimentRunner::ExperimentRunner(const ExperimentDirectory& directory, int64_t jobs, Say say)
    : directory_(directory), jobs_(jobs), say_(std::move(say)) {}

int ExperimentRunner::run(const std::vector<ExperimentRun>& runs) {
  queue_.clear();
  for (const ExperimentRun& run : runs) {
    if (directory_.state(run) == ExperimentRunState::done) {
      directory_.conclude(run, std::nullopt);  // a process killed earlier may not have called this
    } else if (!has_failed(run)) {
      queue_.push_back(run);
    }
  }
  std::reverse(queue_.begin(), queue_.end());

  int stopped_by = 0;
  while (!queue_.empty() || processes_.running() > 0) {
    while (!queue_.empty() && processes_.running() < static_cast<size_t>(jobs_)) {
      const ExperimentRun next = queue_.back();
      queue_.pop_back();
      start(next);
    }
    const ChildProcesses::News news = processes_.wait();
    if (news.signal != 0) {
      if (stopped_by != 0 && is_notice(news.signal)) continue;
      if (stopped_by != 0) break;  // the second signal: processes that still run will be killed
      stopped_by = news.signal;
      say_("Stopping: runs write a checkpoint where they can go on from one.");
      stop();
      continue;
    }
    const Started ended = running_.at(news.ended);
    running_.erase(news.ended);
    handle_end(ended, news.exit_code);
  }
  if (!mistake_.empty()) throw UserError(mistake_);
  return stopped_by;
}

void ExperimentRunner::start(const ExperimentRun& run) {
  const std::vector<std::string> arguments = directory_.prepare(run);
  const bool goes_on = std::find(arguments.begin(), arguments.end(), "--resume") != arguments.end();
  running_[processes_.start(arguments, directory_.log(run))] = {run, monotonic_seconds()};
  say_(concat(full_name(run), goes_on ? ": goes on" : ": begins"));
}

void ExperimentRunner::stop() {
  stopping_ = true;
  queue_.clear();
  processes_.send(SIGTERM);
}

void ExperimentRunner::handle_end(const Started& started, int exit_code) {
  const ExperimentRun& run = started.run;
  if (directory_.state(run) == ExperimentRunState::done) {  // also if the process was killed after its last output
    note_done(started);
    return;
  }
  if (stopping_) return;
  const std::string what = concat(full_name(run), ": ended with exit code ", exit_code, ": ",
                                  last_line(directory_.log(run)), " (", directory_.log(run).string(), ")");
  if (has_trained(directory_.run_directory(run))) {
    failed_.push_back(run);
    say_(what);
    return;
  }
  mistake_ = what;
  stop();
}

void ExperimentRunner::note_done(const Started& started) {
  const double seconds = monotonic_seconds() - started.at_seconds;
  directory_.conclude(started.run, seconds);
  const RunOutcome outcome = read_outcome(directory_.run_directory(started.run), started.run.arm, started.run.seed);
  say_(concat(full_name(started.run), ": done in ", format_duration(seconds), ", held-out loss ",
              outcome.final_loss ? format_number("%.4f nats/token", *outcome.final_loss) : "not finite", time_left()));
}

std::string ExperimentRunner::time_left() const {
  const Experiment& experiment = directory_.experiment();
  std::vector<ExperimentRun> left = queue_;
  for (const auto& [number, started] : running_) left.push_back(started.run);
  // During screening, the runs to compare are still to come.
  const auto is_of_screening = [&](const ExperimentRun& run) {
    return std::find(experiment.screening_seeds.begin(), experiment.screening_seeds.end(), run.seed) !=
           experiment.screening_seeds.end();
  };
  const bool screening = std::any_of(left.begin(), left.end(), is_of_screening);
  const size_t unknown = screening ? experiment.contenders().size() * experiment.seeds.size() : 0;
  if (left.empty() && unknown == 0) return "";
  const std::optional<double> seconds = estimate_seconds(directory_, left, unknown, jobs_);
  return concat("; ", counted(static_cast<int64_t>(left.size() + unknown), "run"), " left",
                seconds ? concat(", about ", format_duration(*seconds)) : "");
}

bool ExperimentRunner::has_failed(const ExperimentRun& run) const {
  return std::any_of(failed_.begin(), failed_.end(), [&](const ExperimentRun& other) { return same(run, other); });
}

std::vector<RunOutcome> ExperimentRunner::outcomes(const std::vector<ExperimentRun>& runs) const {
  std::vector<RunOutcome> outcomes;
  for (const ExperimentRun& run : runs) {
    outcomes.push_back(has_failed(run) ? RunOutcome(run.arm, run.seed, /*has_failed=*/true)
                                       : read_outcome(directory_.run_directory(run), run.arm, run.seed));
  }
  return outcomes;
}

}  // namespace copus
