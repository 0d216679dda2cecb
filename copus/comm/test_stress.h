// For tests: a random sequence of operations in overlapping groups, the same on all ranks, every result checked.
#pragma once

#include <cstdint>
#include <string>

#include "copus/comm/world.h"

namespace copus {

// Runs this rank's part, at its own random pace; empty, or the first difference from what should have come.
std::string run_random_operations(World& world, uint64_t seed, int64_t operations);

}  // namespace copus
