// The world of a job of one process.
#pragma once

#include <memory>

#include "copus/comm/world.h"

namespace copus {

// Every operation completes immediately.
std::unique_ptr<World> single_rank_world();

}  // namespace copus
