// The world of ranks that could not meet because one of them failed. Every operation throws that failure. So a rank
// that joins a failed epoch notices the failure at once, in the same way as any other failure.
#pragma once

#include <chrono>
#include <memory>

#include "copus/comm/world.h"

namespace copus {

// `start`: the time at which the world's clock shows 0.
std::unique_ptr<World> failed_world(int64_t rank, int64_t size, const FailureReport& failure,
                                    std::chrono::steady_clock::time_point start);

}  // namespace copus
