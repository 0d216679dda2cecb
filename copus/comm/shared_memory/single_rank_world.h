// The world of one rank.
#pragma once

#include <memory>

#include "copus/comm/world.h"

namespace copus {

// A world of one rank, this process: every operation is done at once.
std::unique_ptr<World> single_rank_world();

}  // namespace copus
