// When a job began: a limit on its wall clock counts from there, since the scheduler's limit does.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "copus/comm/job/launcher.h"

namespace copus {

// When the process began, on the steady clock; empty where the system does not say.
std::optional<std::chrono::steady_clock::time_point> process_start(int64_t pid);

// Tells whether the launcher has started this process for its job, from the variables that it was started with. Of
// another user's process nobody can tell, and it is no script of this user's.
bool is_within_job(int64_t pid, LauncherKind launcher);

// When the job that `environment` describes began on this machine: its launcher, where Copus, torchrun's agent, SLURM's
// daemon or mpirun has started this process as a rank; otherwise this process. A script between the launcher and this
// process counts as the launcher, since it may start one job after another.
std::chrono::steady_clock::time_point job_start(const std::optional<RankEnvironment>& environment);

// The variable that tells a rank when its job began, as Copus' launchers give it.
std::string job_start_variable(std::chrono::steady_clock::time_point start);

}  // namespace copus
