// Watches whether the launcher of this process is gone or stopped. In both cases nobody forwards signals to this
// process any more. If Copus' own launcher is gone, the kernel ends its ranks. Processes that torchrun's agent or
// SLURM's daemon started (ranks, or a launcher of Copus) end themselves.
#pragma once

#include "copus/comm/job/start/launcher.h"

namespace copus {

// Begins to watch the parent of this process, for as long as this process lives; later calls do nothing. When the
// parent is gone, this process sends itself SIGTERM, so that a run ends in order, with a checkpoint. When the parent is
// stopped, the job continues. The first process of each machine reports either case in a line on stderr. After the
// parent has gone, failures that follow from it are not reported. Three kinds of processes are not watched: processes
// started by hand, ranks of mpirun, which handles this itself, and ranks that have a lifeline (lifeline.h). The
// watching thread receives no signals.
void watch_launcher(const RankEnvironment& environment);

}  // namespace copus
