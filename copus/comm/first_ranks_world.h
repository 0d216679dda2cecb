// The world of some ranks of another one: those that a layout uses, where the job has more.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "copus/comm/world.h"

namespace copus {

// Of these distinct ranks of `inner`, this rank among them, which get ranks in the order of the list. Health and clock
// are those of `inner`, and so are ranks in reports of failures. `inner` belongs to somebody else and outlives it.
// Throws InternalError for a rank that is not among them.
std::unique_ptr<World> chosen_ranks(World& inner, std::vector<int64_t> ranks);

// Of ranks 0 to size - 1.
std::unique_ptr<World> first_ranks(World& inner, int64_t size);

}  // namespace copus
