// How fast this machine computes what training computes, and how fast its ranks communicate: what `copus profile
// --machine` writes down.
#pragma once

#include "copus/comm/world.h"
#include "copus/config/run_config.h"
#include "copus/performance/machine.h"

namespace copus {

// Measures on all ranks of `world` at once, two at least, each with one thread: one for every device that the machine
// has. Every rank calls it; all get the same. Takes some seconds.
MachineMeasurements measure_machine(Precision precision, World& world);

}  // namespace copus
