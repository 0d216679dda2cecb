// The world of ranks that did not meet since one of them failed: every operation throws. So whoever joins an epoch that
// fails at once learns of it where it learns of failures anyway.
#pragma once

#include <chrono>
#include <memory>

#include "copus/comm/world.h"

namespace copus {

// `start`: what its clock counts from.
std::unique_ptr<World> failed_world(int64_t rank, int64_t size, const FailureReport& failure,
                                    std::chrono::steady_clock::time_point start);

}  // namespace copus
