// The signals that ask a long command to end in order: Ctrl-C, SIGTERM, and notices. A notice announces an end: SIGHUP
// says that the terminal is gone, and schedulers send SIGUSR1 or SIGUSR2 some time before they end a job.
#pragma once

#include <vector>

namespace copus {

// A notice asks to stop once, however often it comes, and is never taken for impatience.
bool is_notice(int signal);

// SIGINT, SIGTERM, and the notices that this process does not ignore: `nohup` has it ignore SIGHUP.
std::vector<int> stop_signals();

}  // namespace copus
