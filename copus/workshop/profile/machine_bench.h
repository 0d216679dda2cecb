// How fast this machine computes what training computes, and how fast its ranks communicate: what `copus profile
// --machine` writes down.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "copus/comm/world.h"
#include "copus/config/run_config.h"
#include "copus/performance/machine.h"

namespace copus {

// How many devices this machine has for `device`, "cpu" or "cuda": cores, or GPUs.
int64_t devices_of_machine(const std::string& device);

// Measures on all ranks of `world` at once, two at least: one for every device that the machine has. Each uses one
// thread, or a GPU of its own; ranks beyond the GPUs only communicate. Every rank calls it; all get the same. Takes
// some seconds. Throws UserError where there is no such device.
MachineMeasurements measure_machine(Precision precision, const std::string& device, int64_t local_rank,
                                    std::unique_ptr<World> world);

}  // namespace copus
