// The world of some ranks of another world, for a layout that does not use all ranks of the job.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "copus/comm/world.h"

namespace copus {

// Returns a world that consists of these ranks of `inner`. The ranks must be distinct and include this rank; their
// positions in the list are their new ranks. The new world uses the health and the clock of `inner`, and failure
// reports use the ranks of `inner`. The caller owns `inner`, which must outlive the new world. Throws InternalError if
// this rank is not in the list.
std::unique_ptr<World> chosen_ranks(World& inner, std::vector<int64_t> ranks);

// Returns the world of ranks 0 to size - 1 of `inner`.
std::unique_ptr<World> first_ranks(World& inner, int64_t size);

}  // namespace copus
