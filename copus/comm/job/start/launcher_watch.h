// Watches whether the launcher of this process is gone or stopped, because nobody then forwards signals to this
// process. The ranks of Copus' own launcher are ended by the kernel together with the launcher. Processes (ranks, or a
// launcher of Copus) that torchrun's agent or SLURM's daemon started end themselves.
#pragma once

#include "copus/comm/job/start/launcher.h"

namespace copus {

// Watches the parent of this process from now until this process ends; later calls do nothing. The watching thread
// receives no signals.
//
// When the parent is gone, this process sends itself SIGTERM, so that the run ends in order, with a checkpoint.
// Failures that follow from this are not reported. When the parent is stopped, the job continues. In both cases the
// first process of each machine prints a line on stderr.
//
// Three kinds of processes are not watched: processes started by hand, ranks of mpirun (which handles this itself), and
// ranks that have a lifeline (lifeline.h).
void watch_launcher(const RankEnvironment& environment);

}  // namespace copus
