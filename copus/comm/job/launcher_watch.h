// Watches whether the launcher of this process is gone or stopped. In both cases nobody forwards signals to this
// process any more. The kernel ends ranks of Copus' own launcher when the launcher is gone. Processes that torchrun's
// agent or SLURM's daemon started, ranks or a launcher of ours, end themselves.
#pragma once

#include "copus/comm/job/launcher.h"

namespace copus {

// Begins to watch the parent of this process, for as long as this process lives; later calls do nothing. When the
// parent is gone, this process sends itself SIGTERM, so that a run ends in order, with a checkpoint. When the parent is
// stopped, the job continues. The first process of each machine reports either case in a line on stderr; after the
// former, failures that follow from it are not reported. Processes that were started by hand are not watched, nor those
// of mpirun, which handles this itself, nor ranks that have a lifeline (lifeline.h). The watching thread receives no
// signals.
void watch_launcher(const RankEnvironment& environment);

}  // namespace copus
