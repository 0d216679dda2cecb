// The world of the first ranks of another one: those that a layout uses, where the job has more.
#pragma once

#include <cstdint>
#include <memory>

#include "copus/comm/world.h"

namespace copus {

// Of ranks 0 to size - 1 of `inner`, this rank among them. Groups, health and clock are those of `inner`, which belongs
// to somebody else and outlives it. Throws InternalError for a rank that is not among them.
std::unique_ptr<World> first_ranks(World& inner, int64_t size);

}  // namespace copus
