// A run whose ranks may fail, leave and come: epoch after epoch, whoever is there goes on with the training state that
// survives in memory.
#pragma once

#include <c10/core/Device.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>

#include "copus/comm/job/membership.h"
#include "copus/train/run.h"
#include "copus/train/run_plan.h"

namespace copus {

// Trains as run_training does, as one process of a job. `plan`: empty in a process that has come after the first epoch,
// which takes the others', or where none of them has one makes that of the run in a directory, to resume it, by
// `plan_again`. The device is the CPU and the clock the real one.
// Throws UserError likewise, and where nothing can heal: nothing of the state is left and there is no checkpoint, or
// the ranks fail again and again at the same step.
RunEnd run_healing_training(std::optional<RunPlan> plan,
                            const std::function<RunPlan(const std::filesystem::path& directory)>& plan_again,
                            double max_seconds, std::chrono::steady_clock::time_point start, Membership& membership,
                            at::Device device, int64_t local_ranks);

}  // namespace copus
