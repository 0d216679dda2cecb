// The world of a job that is one process.
#pragma once

#include <memory>

#include "copus/comm/world.h"

namespace copus {

// Every operation is done at once.
std::unique_ptr<World> single_rank_world();

}  // namespace copus
