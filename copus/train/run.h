// A whole training run: set-up, the loop, evaluation, checkpoints, and an end that can be gone on from.
#pragma once

#include <string>
#include <vector>

namespace copus {

struct RunRequest {
  std::string config_path;             // may be empty with `resume`: the run directory's own config.toml is used
  std::vector<std::string> overrides;  // "section.key=value"
  std::string run_directory;           // empty: runs/<config name>-<date>-<time>
  bool resume = false;
  double max_seconds = 0;  // wall clock of this process, the checkpoint at its end included; 0: no limit
};

// How a run ended, as the exit code of the process.
enum class RunEnd {
  done = 0,
  requeue = 75,       // SIGTERM or the wall-clock limit, with a checkpoint written: start again with `resume`
  interrupted = 130,  // Ctrl-C, likewise
};

// Trains. Throws UserError for the user's mistakes, all of which are found before the run directory is created, and
// when ten steps in a row had no finite loss and gradient.
RunEnd run_training(const RunRequest& request);

}  // namespace copus
