// Chooses which configurations a profile measures if the user names none: those whose step times are most informative.
#pragma once

#include <cstdint>
#include <vector>

#include "copus/description/parallel_strategy.h"

namespace copus {

// Chooses at most `count` of the candidates, which differ as much as possible. The distance of two candidates is
// computed from the logarithms of d, t, p, v, b and the number of micro-batches, and from all options. Each choice is
// the candidate farthest from the earlier choices (Gonzalez 1985); the seed determines the first choice.
std::vector<Configuration> choose_cells(const std::vector<Configuration>& candidates, int64_t count, uint64_t seed);

}  // namespace copus
