// Measures for `copus profile --machine` how fast this machine computes the operations of training, and how fast its
// ranks communicate.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "copus/comm/world.h"
#include "copus/config/run_config.h"
#include "copus/performance/measured/machine.h"

namespace copus {

// Number of this machine's devices for `device`, "cpu" or "cuda": cores, or GPUs.
int64_t devices_of_machine(const std::string& device);

// Measures on all ranks of `world` at the same time: at least two ranks, and at least one for every device of the
// machine. Each rank uses one thread, or its own GPU; ranks beyond the number of GPUs only communicate. Every rank
// calls this, and all get the same result. Takes some seconds. Throws UserError if there is no such device.
MachineMeasurements measure_machine(Precision precision, const std::string& device, int64_t local_rank,
                                    std::unique_ptr<World> world);

}  // namespace copus
