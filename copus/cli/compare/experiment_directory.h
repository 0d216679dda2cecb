// Manages the directory of an experiment: finds the runs that are done or can be resumed, and refuses changes that
// would affect finished runs.
//
//   experiment.toml           the experiment as it was last run
//   results.json
//   runs/<arm>/seed-<n>/      a run directory
//   runs/<arm>/seed-<n>.toml  its configuration at the start; .log: its output; .json: how long it took
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
  // `text` is the content of the experiment's file, and `source` is its name in messages. `base_text` is the content of
  // its base configuration.
  ExperimentDirectory(std::filesystem::path directory, std::string source, std::string text, std::string base_text);

  const Experiment& experiment() const { return experiment_; }
  const std::filesystem::path& path() const { return directory_; }
  std::filesystem::path run_directory(const ExperimentRun& run) const;
  std::filesystem::path log(const ExperimentRun& run) const;
  ExperimentRunState state(const ExperimentRun& run) const;

  // Throws UserError if the directory holds something other than an experiment.
  void check_place() const;

  // Throws UserError if finished runs do not belong to this experiment: their settings differ, their arm or seed was
  // removed, or what is compared (targets, reference, screening seeds, ...) has changed since. Also throws UserError if
  // an arm is new in a screening group that has already chosen an arm and finished a run to compare.
  void check_runs() const;

  // Writes experiment.toml.
  void record() const;

  // Prepares a run and returns the arguments of its process, which resumes from the run's checkpoint or starts from the
  // beginning. Runs on the virtual clock always restart, because an interruption would change their times. Throws
  // UserError if another process is still writing into the run's directory.
  std::vector<std::string> prepare(const ExperimentRun& run) const;

  // Records how long a finished run took, in seconds of wall-clock time, and deletes its checkpoints.
  void conclude(const ExperimentRun& run, std::optional<double> wall_seconds) const;
  std::optional<double> wall_seconds(const ExperimentRun& run) const;

 private:
  const ExperimentArm* find_arm(const std::string& name) const;
  bool has(const ExperimentRun& run) const;
  RunConfig config_of(const ExperimentRun& run) const;
  // Returns the configuration with which a run was last started from its beginning.
  RunConfig begun_config(const ExperimentRun& run) const;
  // Lists the keys whose values in a started run differ from those in `wanted`.
  std::vector<std::string> changes_of(const ExperimentRun& run, RunConfig wanted) const;
  std::vector<ExperimentRun> runs_in(ExperimentRunState state) const;
  // Sets data.mask_across_documents in the configuration of the next run to its value in the finished runs or, if there
  // are none, in the interrupted runs. Throws UserError if these runs disagree.
  void keep_mask_of_earlier_runs(RunConfig& config) const;
  void check_what_was_written_down(const Experiment& then) const;
  void check_groups(const Experiment& then, const std::vector<ExperimentRun>& done) const;

  std::filesystem::path directory_;
  std::string source_;
  std::string text_;
  std::string base_text_;
  Experiment experiment_;
};

}  // namespace copus
