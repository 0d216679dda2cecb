// The directory of an experiment: which of its runs are done, which can go on, and what is refused because it would
// change what is done.
//
//   experiment.toml           the experiment as it was last run
//   results.json
//   runs/<arm>/seed-<n>/      a run directory
//   runs/<arm>/seed-<n>.toml  the configuration that it was started with; .log: what it printed; .json: how long it
//   took
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "copus/config/experiment.h"

namespace copus {

struct ExperimentRun {
  std::string arm;
  int64_t seed = 0;
};

enum class ExperimentRunState { to_do, interrupted, done };

class ExperimentDirectory {
 public:
  // `text` is the content of the experiment's file, which is called `source` in messages, and `base_text` that of its
  // base configuration.
  ExperimentDirectory(std::filesystem::path directory, std::string source, std::string text, std::string base_text);

  const Experiment& experiment() const { return experiment_; }
  const std::filesystem::path& path() const { return directory_; }
  std::filesystem::path run_directory(const ExperimentRun& run) const;
  std::filesystem::path log(const ExperimentRun& run) const;
  ExperimentRunState state(const ExperimentRun& run) const;

  // Throws UserError where the directory holds something else than an experiment.
  void check_place() const;

  // Throws UserError where runs that are done would not be those of this experiment: they have other settings, or it
  // no longer has their arm or seed, or looks for something else than what was written down before they ran; or where
  // an arm joins a group of which one is chosen and has such a run with the seeds that are compared.
  void check_runs() const;

  // Writes experiment.toml.
  void record() const;

  // Makes everything ready for the run and returns the arguments of the process that does it: to go on from its
  // checkpoint, or from the beginning. Runs on the virtual clock begin anew, since their times would else depend on
  // where they were interrupted. Throws UserError where a process still writes into it.
  std::vector<std::string> prepare(const ExperimentRun& run) const;

  // Notes how long a run that is done took, in seconds on the wall clock, and deletes its checkpoints.
  void conclude(const ExperimentRun& run, std::optional<double> wall_seconds) const;
  std::optional<double> wall_seconds(const ExperimentRun& run) const;

 private:
  const ExperimentArm* find_arm(const std::string& name) const;
  RunConfig config_of(const ExperimentRun& run) const;
  // Lists the keys in which a run that was begun differs from the experiment.
  std::vector<std::string> changes_of(const ExperimentRun& run) const;
  std::vector<ExperimentRun> runs_that_are_done() const;
  void check_what_was_written_down(const Experiment& then) const;
  void check_groups(const Experiment& then, const std::vector<ExperimentRun>& done) const;

  std::filesystem::path directory_;
  std::string source_;
  std::string text_;
  std::string base_text_;
  Experiment experiment_;
};

}  // namespace copus
