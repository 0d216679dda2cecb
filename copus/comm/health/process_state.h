// Whether a process runs, is stopped, or is gone, as the kernel tells it.
#pragma once

#include <cstdint>

namespace copus {

enum class ProcessState { running, stopped, gone };
// Why a process that is stopped has failed, as it is told.
inline constexpr const char* stopped_cause = "stopped (SIGSTOP)";

// From /proc/<pid>/stat. A process that has ended and waits for its parent to notice is gone; one that a debugger holds
// is running.
ProcessState process_state(int64_t pid);

// Whether one of its threads runs or waits for a processor.
bool has_runnable_thread(int64_t pid);

}  // namespace copus
