// Processes of a job whose launcher is gone or stopped. Nobody passes signals on to them any more then, or knows that
// they are there. Ranks of Copus' own launcher are ended by the kernel when it is gone; what torchrun's agent or
// SLURM's daemon has started, ranks or a launcher of ours, ends itself.
#pragma once

#include "copus/comm/job/launcher.h"

namespace copus {

// Begins to watch over the process that has started this one, for as long as this one lives; later calls do nothing.
// When it is gone, this process is sent SIGTERM: a run ends in order then, with a checkpoint. When it is stopped, the
// job goes on. The first process of each machine tells of either in a line on stderr, and failures that follow from the
// former are not told any more. What somebody has started by hand, or mpirun, which sees to that itself, is left alone,
// and so are ranks that have a lifeline (lifeline.h). The thread that watches takes no signals.
void watch_launcher(const RankEnvironment& environment);

}  // namespace copus
