// Does the runs of an experiment, several at once, in an order that spreads what changes on the machine over all arms:
// seed by seed, and within a seed arm by arm.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "copus/cli/child_processes.h"
#include "copus/cli/experiment_directory.h"
#include "copus/report/drawn/comparison.h"

namespace copus {

// The runs on which the arms of groups are told apart, and the runs that are compared. Of a group the latter are those
// of its arm in `choices`; groups that are not there yet, or have chosen none, have none.
std::vector<ExperimentRun> screening_runs(const Experiment& experiment);
std::vector<ExperimentRun> final_runs(const Experiment& experiment, const std::vector<GroupChoice>& choices);

// Number of runs of the whole experiment.
size_t count_runs(const Experiment& experiment);

// Seconds on the wall clock that `left` runs, and `unknown` more whose arm is not chosen yet, will take, `jobs` at a
// time, by what the runs took that are done: those of the same arm, or where there are none, of all. Empty where no run
// is done.
std::optional<double> estimate_seconds(const ExperimentDirectory& directory, const std::vector<ExperimentRun>& left,
                                       size_t unknown, int64_t jobs);

class ExperimentRunner {
 public:
  using Say = std::function<void(const std::string& line)>;

  // `say` takes a line for people when a run begins or has ended.
  ExperimentRunner(const ExperimentDirectory& directory, int64_t jobs, Say say);

  // Does those of the runs that are not done yet. Returns the signal that stopped it, or 0. A run that ends before its
  // time after it has trained has failed; the others go on. Throws UserError, after the others were asked to stop,
  // where a run ended before its first step: then something is wrong with what was given.
  int run(const std::vector<ExperimentRun>& runs);

  // Runs that have failed so far.
  const std::vector<ExperimentRun>& failed() const { return failed_; }

  // Returns outcomes of runs that run() has been through.
  std::vector<RunOutcome> outcomes(const std::vector<ExperimentRun>& runs) const;

 private:
  struct Started {
    ExperimentRun run;
    double at_seconds;  // of monotonic_seconds()
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
  std::vector<ExperimentRun> queue_;  // in reverse
  std::map<size_t, Started> running_;
  std::vector<ExperimentRun> failed_;
  bool stopping_ = false;
  std::string mistake_;  // of a run that ended before its first step
  ChildProcesses processes_;
};

}  // namespace copus
