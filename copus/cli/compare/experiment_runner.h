// Runs an experiment, several runs at the same time: seed by seed, and for each seed arm by arm. This order spreads
// changes of the machine's speed over all arms.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "copus/cli/compare/child_processes.h"
#include "copus/cli/compare/experiment_directory.h"
#include "copus/report/drawn/comparison.h"

namespace copus {

// Return the screening runs of all arms in groups, and the runs to compare. A group contributes only the runs of its
// arm in `choices` to the comparison. A group without an entry in `choices`, or without a chosen arm, contributes none.
std::vector<ExperimentRun> screening_runs(const Experiment& experiment);
std::vector<ExperimentRun> final_runs(const Experiment& experiment, const std::vector<GroupChoice>& choices);

// The number of runs of the whole experiment.
size_t count_runs(const Experiment& experiment);

// Returns an estimate of the wall-clock seconds for `left` runs, and for `unknown` further runs whose arm is not chosen
// yet, with `jobs` runs at a time. The estimate uses the times of finished runs of the same arm or, if there are none,
// of all arms. Empty if no run has finished.
std::optional<double> estimate_seconds(const ExperimentDirectory& directory, const std::vector<ExperimentRun>& left,
                                       size_t unknown, int64_t jobs);

class ExperimentRunner {
 public:
  using Say = std::function<void(const std::string& line)>;

  // `say` is called with a line for people when a run begins or ends.
  ExperimentRunner(const ExperimentDirectory& directory, int64_t jobs, Say say);

  // Executes the runs that are not done yet. Returns the signal that stopped it, or 0. A run that ends early after it
  // has trained is counted as failed, and the others continue. A run that ends before its first step must have wrong
  // inputs. Then the other runs are asked to stop, and run() throws UserError.
  int run(const std::vector<ExperimentRun>& runs);

  // Runs that failed so far.
  const std::vector<ExperimentRun>& failed() const { return failed_; }

  // Returns the outcomes of runs that run() has handled.
  std::vector<RunOutcome> outcomes(const std::vector<ExperimentRun>& runs) const;

 private:
  struct Started {
    ExperimentRun run;
    double at_seconds;  // monotonic_seconds() at the start
  };

  void start(const ExperimentRun& run);
  void stop();
  void handle_end(const Started& started, int exit_code);
  void note_done(const Started& started);
  std::string time_left() const;
  bool has_failed(const ExperimentRun& run) const;

  const ExperimentDirectory& directory_;
  int64_t jobs_;
  Say say_;
  std::vector<ExperimentRun> queue_;  // in reverse order
  std::map<size_t, Started> running_;
  std::vector<ExperimentRun> failed_;
  bool stopping_ = false;
  std::string mistake_;  // the message of a run that ended before its first step
  ChildProcesses processes_;
};

}  // namespace copus
