// Finds when a job began. A limit on its wall-clock time counts from this moment, as the scheduler's limit does.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "copus/comm/job/start/launcher.h"

namespace copus {

// When the process began, on the steady clock; empty if the system does not say.
std::optional<std::chrono::steady_clock::time_point> process_start(int64_t pid);

// Returns whether the launcher started this process for its job. The variables with which the process was started show
// this. Returns false for another user's process, whose variables are hidden, because it cannot be a script of this
// user.
bool is_within_job(int64_t pid, LauncherKind launcher);

// Returns the time at which the job described by `environment` began on this machine. If Copus, torchrun's agent,
// SLURM's daemon or mpirun started this process as a rank, this is the start of the launcher; otherwise it is the start
// of this process. A script between the launcher and this process is treated as the launcher, because it may start
// several jobs in turn.
std::chrono::steady_clock::time_point job_start(const std::optional<RankEnvironment>& environment);

// The variable with which Copus' launchers tell a rank when its job began.
std::string job_start_variable(std::chrono::steady_clock::time_point start);

}  // namespace copus
