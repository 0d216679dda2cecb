// Which configurations a profile measures: those that somebody names, or those that teach most.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "copus/description/parallel_strategy.h"

namespace copus {

// "d2 t1 p4 v1 1f1b sp0 zero1 none gb64 mb2".
std::string cell_name(const Configuration& configuration);

// The configuration of such a name. Parts that it does not have are those of `otherwise`. Throws UserError.
Configuration parse_cell_name(const std::string& name, const Configuration& otherwise);

// At most `count` of the candidates that differ as much as possible: in the logarithms of d, t, p, B_m and the number
// of micro-batches, and in what else there is. Each is the one farthest from those before it (Gonzalez 1985); the first
// one follows from the seed.
std::vector<Configuration> choose_cells(const std::vector<Configuration>& candidates, int64_t count, uint64_t seed);

}  // namespace copus
