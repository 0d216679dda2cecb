// Runs an experiment, several runs at the same time. All arms of one seed run before the next seed, so that a change of
// the machine's speed affects all arms equally.
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

// The first function returns the screening runs, which choose the best arm of each group. The second returns the runs
// to compare: the runs of arms outside groups, and of each group's arm in `choices`. A group without an entry in
// `choices` is left out.
std::vector<ExperimentRun> screening_runs(const Experiment& experiment);
std::vector<ExperimentRun> final_runs(const Experiment& experiment, const std::vector<GroupChoice>& choices);

// The number of runs of the whole experiment.
size_t count_runs(const Experiment& experiment);

// Estimates the wall-clock seconds for `left` runs, and for `unknown` further runs whose arm is not chosen yet, with
// `jobs` runs at a time. Uses the times of finished runs of the same arm or, if there are none, of all arms. Returns
// nothing if no run has finished.
std::optional<double> estimate_seconds(const ExperimentDirectory& directory, const std::vector<ExperimentRun>& left,
                                       size_t unknown, int64_t jobs);

class ExperimentRunner {
 public:
  using Say = std::function<void(const std::string& line)>;

  // `say` is called with a line for the user when a run begins or ends.
  ExperimentRunner(const ExperimentDirectory& directory, int64_t jobs, Say say);

  // Executes the runs that are not done yet. Returns the signal that stopped the experiment, or 0. If a run fails after
  // its first step, it is counted as failed, and the others continue. If a run fails before its first step, its inputs
  // must be wrong: the other runs are asked to stop, and run() throws UserError.
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
