// A run whose ranks may fail, leave and come: epoch after epoch, whoever is there goes on with the training state that
// survives in memory.
#pragma once

#include <c10/core/Device.h>

#include <chrono>
#include <cstdint>
#include <optional>

#include "copus/comm/job/membership.h"
#include "copus/train/run.h"
#include "copus/train/run_plan.h"

namespace copus {

// Trains as run_training does, as one process of a job. `plan`: empty in a process that has come after the first epoch,
// which takes the others'. The device is the CPU and the clock the real one.
// Throws UserError likewise, and where nothing can heal: no rank that is left holds state, or the ranks fail again and
// again at the same step.
RunEnd run_healing_training(std::optional<RunPlan> plan, double max_seconds,
                            std::chrono::steady_clock::time_point start, Membership& membership, at::Device device,
                            int64_t local_ranks);

}  // namespace copus
