// A run whose ranks may fail, leave and join. Each epoch has a fixed set of processes, which continue with the training
// state that survives in memory.
#pragma once

#include <c10/core/Device.h>

#include <chrono>
#include <cstdint>
#include <optional>

#include "copus/comm/job/member/membership.h"
#include "copus/train/run/run.h"
#include "copus/train/run/run_plan.h"

namespace copus {

// Trains like run_training, as one process of a job whose processes all have the same `request`. A process that joined
// after the first epoch passes no `plan` and receives the run's configuration from the other processes. If no process
// has a plan, they make one from the files in the run directory. The device is the CPU, the clock the real one. Throws
// UserError like run_training, or if the run cannot recover: no state is left and there is no checkpoint, or ranks fail
// repeatedly at the same step.
RunEnd run_healing_training(const RunRequest& request, std::optional<RunPlan> plan, double max_seconds,
                            std::chrono::steady_clock::time_point start, Membership& membership, at::Device device,
                            int64_t local_ranks);

}  // namespace copus
