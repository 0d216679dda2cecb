// The world of some ranks of another one: those that a layout uses, where the job has more.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "copus/comm/world.h"

namespace copus {

// The world of these ranks of `inner`, which are distinct and include this one. The order of the list gives them their
// new ranks. Health, clock and the ranks in reports of failures stay those of `inner`, which belongs to somebody else
// and outlives this world. Throws InternalError for a rank that is not in the list.
std::unique_ptr<World> chosen_ranks(World& inner, std::vector<int64_t> ranks);

// The world of ranks 0 to size - 1.
std::unique_ptr<World> first_ranks(World& inner, int64_t size);

}  // namespace copus
