// Lists the signals that ask a long command to end in an orderly way: Ctrl-C, SIGTERM, and notices. A notice announces
// that the command will soon have to end: SIGHUP when the terminal is gone, and SIGUSR1 or SIGUSR2, which schedulers
// send some time before they end a job.
#pragma once

#include <vector>

namespace copus {

// Returns whether a signal is a notice. A repeated notice has no further effect. In contrast, a repeated Ctrl-C or
// SIGTERM ends the command at once.
bool is_notice(int signal);

// SIGINT, SIGTERM, and the notices that this process does not ignore. Under `nohup` it ignores SIGHUP.
std::vector<int> stop_signals();

}  // namespace copus
