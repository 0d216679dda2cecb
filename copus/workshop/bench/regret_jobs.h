// The jobs that `copus bench regret` simulates.
#pragma once

#include <vector>

#include "copus/simulate/job.h"

namespace copus {

// Four jobs, from a laptop to 512 GPUs, on clusters and models that ship with the program.
std::vector<SimulatedJob> regret_jobs();

}  // namespace copus
