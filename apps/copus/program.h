// The program `copus`: command line in, exit code out.
#pragma once

namespace copus {

// Runs the program and returns its exit code:
// - 0: done;
// - 1: an error of Copus or of the machine;
// - 2: the user's mistake, with one line on stderr that begins "copus: error:";
// - 75: stopped by SIGTERM or --max-time after writing a checkpoint (EX_TEMPFAIL of sysexits.h: a scheduler may
//   requeue);
// - 130: stopped by Ctrl-C after writing a checkpoint.
int run_program(int argc, char* const* argv);

}  // namespace copus
