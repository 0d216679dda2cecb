// A whole training run: set-up, loop, evaluation, checkpoints, and an end from which the run can resume.
#pragma once

#include <c10/core/Device.h>

#include <chrono>
#include <cstdint>

#include "copus/comm/world.h"
#include "copus/train/run/run_plan.h"

namespace copus {

// How a run ended; the value is the process's exit code.
enum class RunEnd {
  done = 0,
  requeue = 75,       // SIGTERM or the wall-clock limit, after a checkpoint: start again with `resume`
  interrupted = 130,  // Ctrl-C, after a checkpoint
};

// Trains as one rank of `world`, which has as many ranks as the plan's layout and is connected for `device`
// (connect_devices). Every rank calls it with the same plan. `local_ranks`: ranks on this machine, which share its
// cores. Rank 0 writes the run directory and shows progress. `max_seconds` limits the wall-clock time from `start`,
// including the final checkpoint; 0: no limit. Throws UserError for user's mistakes (always before the run directory is
// created), if a write fails, and after StepCompletion::max_skipped_in_a_row consecutive steps without finite loss and
// gradient.
RunEnd run_training(RunPlan plan, double max_seconds, std::chrono::steady_clock::time_point start, World& world,
                    at::Device device, int64_t local_ranks);

}  // namespace copus
