// Finds out from the kernel whether a process runs, is stopped, or is gone.
#pragma once

#include <cstdint>

namespace copus {

enum class ProcessState { running, stopped, gone };
// The reported cause for a rank whose process is stopped.
inline constexpr const char* stopped_cause = "stopped (SIGSTOP)";

// Reads /proc/<pid>/stat. A zombie is reported as gone, and a process that a debugger holds as running.
ProcessState process_state(int64_t pid);

// Whether a thread of the process is running or waiting for a processor.
bool has_runnable_thread(int64_t pid);

}  // namespace copus
