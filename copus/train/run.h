// A whole training run: set-up, the loop, evaluation, checkpoints, and an end that can be gone on from.
#pragma once

#include <chrono>

#include "copus/train/run_plan.h"

namespace copus {

// How a run ended, as the exit code of the process.
enum class RunEnd {
  done = 0,
  requeue = 75,       // SIGTERM or the wall-clock limit, with a checkpoint written: start again with `resume`
  interrupted = 130,  // Ctrl-C, likewise
};

// Trains. `max_seconds` limits the wall clock from `start`, the checkpoint at the end included; 0: no limit.
// Throws UserError for the user's mistakes, all of which are found before the run directory is created; when the disk
// refuses; and when Trainer::max_skipped_in_a_row steps in a row had no finite loss and gradient.
RunEnd run_training(const RunRequest& request, double max_seconds, std::chrono::steady_clock::time_point start);

}  // namespace copus
