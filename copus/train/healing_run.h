// A run whose ranks may fail, leave and come: epoch after epoch, whoever is there goes on with the training state that
// survives in memory.
#pragma once

#include <c10/core/Device.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "copus/comm/job/membership.h"
#include "copus/train/run.h"
#include "copus/train/run_plan.h"

namespace copus {

// What processes need to resume the run of this plan, whose precision has been chosen, when nobody else is left who
// knows it: `request`, with which the job was started, with what the note says.
std::string note_of(const RunPlan& plan);
RunRequest request_of_note(RunRequest request, const std::string& note);

// Trains as run_training does, as one process of a job. `plan`: empty in a process that has come after the first epoch,
// which takes the others', or where none of them has one makes it again by `plan_again` from the note that
// they left (note_of). The device is the CPU and the clock the real one.
// Throws UserError likewise, and where nothing can heal: nothing of the state is left and there is no checkpoint, or
// the ranks fail again and again at the same step.
RunEnd run_healing_training(std::optional<RunPlan> plan,
                            const std::function<RunPlan(const std::string& note)>& plan_again, double max_seconds,
                            std::chrono::steady_clock::time_point start, Membership& membership, at::Device device,
                            int64_t local_ranks);

}  // namespace copus
