// Which configurations a profile measures where nobody names them: those that teach most.
#pragma once

#include <cstdint>
#include <vector>

#include "copus/description/parallel_strategy.h"

namespace copus {

// Chooses at most `count` of the candidates that differ as much as possible: in the logarithms of d, t, p, v, b and the
// number of micro-batches, and in all options. Each is the one farthest from those before it (Gonzalez 1985); the first
// one follows from the seed.
std::vector<Configuration> choose_cells(const std::vector<Configuration>& candidates, int64_t count, uint64_t seed);

}  // namespace copus
