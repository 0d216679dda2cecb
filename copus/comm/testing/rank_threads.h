// For tests: the ranks of a job as threads of one process.
#pragma once

#include <cstdint>
#include <functional>

#include "copus/comm/world.h"

namespace copus {

// Runs `body` as ranks 0 .. size - 1, each on its own thread, with the same code as between processes. Returns when all
// have ended. Rethrows the first exception of a rank that is not caused by another rank's failure (RankFailure).
void run_ranks_as_threads(int64_t size, const std::function<void(World&)>& body,
                          double wait_seconds = default_wait_seconds);

}  // namespace copus
