// The world of ranks that could not meet because one of them failed: every operation throws. A rank that joins a failed
// epoch therefore notices the failure immediately, in the same way as any other failure.
#pragma once

#include <chrono>
#include <memory>

#include "copus/comm/world.h"

namespace copus {

// `start`: the zero of its clock.
std::unique_ptr<World> failed_world(int64_t rank, int64_t size, const FailureReport& failure,
                                    std::chrono::steady_clock::time_point start);

}  // namespace copus
