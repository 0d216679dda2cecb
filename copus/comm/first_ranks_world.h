// The world of some ranks of another world, for a layout that does not use all ranks of the job.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "copus/comm/world.h"

namespace copus {

// Returns a world that consists of these ranks of `inner`. The ranks are distinct and include this rank; their order in
// the list gives them their new ranks. Health, clock and the ranks in failure reports stay those of `inner`. The caller
// owns `inner`, which must outlive the new world. Throws InternalError if this rank is not in the list.
std::unique_ptr<World> chosen_ranks(World& inner, std::vector<int64_t> ranks);

// The world of ranks 0 to size - 1.
std::unique_ptr<World> first_ranks(World& inner, int64_t size);

}  // namespace copus
