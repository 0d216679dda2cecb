// Lists the signals that ask a long command to end in an orderly way: Ctrl-C, SIGTERM, and notices. A notice announces
// an end: SIGHUP means that the terminal is gone, and schedulers send SIGUSR1 or SIGUSR2 some time before they end a
// job.
#pragma once

#include <vector>

namespace copus {

// Returns whether a signal is a notice. A notice is one request to stop, however often it is sent. A repeated Ctrl-C or
// SIGTERM, in contrast, ends the command at once.
bool is_notice(int signal);

// SIGINT, SIGTERM, and the notices that this process does not ignore. Under `nohup` it ignores SIGHUP.
std::vector<int> stop_signals();

}  // namespace copus
