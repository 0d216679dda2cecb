// A whole training run: set-up, the loop, evaluation, checkpoints, and an end from which it can be resumed.
#pragma once

#include <c10/core/Device.h>

#include <chrono>
#include <cstdint>

#include "copus/comm/world.h"
#include "copus/train/run/run_plan.h"

namespace copus {

// How a run ended, as the exit code of the process.
enum class RunEnd {
  done = 0,
  requeue = 75,       // SIGTERM or the wall-clock limit, with a checkpoint written: start again with `resume`
  interrupted = 130,  // Ctrl-C, with a checkpoint written
};

// Trains as one rank of `world`, which has as many ranks as the plan's layout and is connected for `device`
// (connect_devices). Every rank calls it with the same plan. `local_ranks`: ranks on this machine, which share its
// cores. Rank 0 writes the run directory and shows the progress. `max_seconds` limits the wall-clock time from `start`,
// including the final checkpoint; 0: no limit.
// Throws UserError for the user's mistakes, all of which are found before the run directory is created. Also throws it
// if the disk fails a write, and after StepCompletion::max_skipped_in_a_row steps in a row without a finite loss and
// gradient.
RunEnd run_training(RunPlan plan, double max_seconds, std::chrono::steady_clock::time_point start, World& world,
                    at::Device device, int64_t local_ranks);

}  // namespace copus
