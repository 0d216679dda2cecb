// Finds out when a job began. A limit on the job's wall-clock time counts from this moment, like the scheduler's own
// limit.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "copus/comm/job/start/launcher.h"

namespace copus {

// When the process began, on the steady clock; empty if the system does not say.
std::optional<std::chrono::steady_clock::time_point> process_start(int64_t pid);

// Returns whether the launcher started process `pid` as part of its job. The environment with which the process was
// started shows this. Returns false for another user's process, whose environment is hidden and which cannot be a
// script of this user.
bool is_within_job(int64_t pid, LauncherKind launcher);

// Returns the time at which the job described by `environment` began on this machine. If Copus, torchrun's agent,
// SLURM's daemon or mpirun started this process as a rank, this is the start of that launcher; otherwise it is the
// start of this process. But if the launcher runs a script that starts this process, the script's start is used,
// because one launcher may run several jobs in turn by such scripts.
std::chrono::steady_clock::time_point job_start(const std::optional<RankEnvironment>& environment);

// The variable with which Copus' launchers tell a rank when its job began.
std::string job_start_variable(std::chrono::steady_clock::time_point start);

}  // namespace copus
