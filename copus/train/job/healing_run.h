// A run whose ranks may fail, leave and join. Each epoch has a fixed set of processes, which continue with the training
// state that survives in memory.
#pragma once

#include <c10/core/Device.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>

#include "copus/comm/job/member/membership.h"
#include "copus/train/run/run.h"
#include "copus/train/run/run_plan.h"

namespace copus {

// Trains like run_training, as one process of a job. A process that joined after the first epoch passes no `plan` and
// receives it from the other processes. If no process has a plan, `plan_again` makes the plan to resume the run in a
// directory. The device is the CPU, the clock the real one. Throws UserError like run_training, or if the run cannot
// recover: no state is left and there is no checkpoint, or ranks fail repeatedly at the same step.
RunEnd run_healing_training(std::optional<RunPlan> plan,
                            const std::function<RunPlan(const std::filesystem::path& directory)>& plan_again,
                            double max_seconds, std::chrono::steady_clock::time_point start, Membership& membership,
                            at::Device device, int64_t local_ranks);

}  // namespace copus
