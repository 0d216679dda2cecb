// Explains why there is no plan: the obstacle at every batch, and the smallest changes that would help.
#pragma once

#include <string>

#include "copus/plan/plan.h"

namespace copus {

// Explains why no configuration is possible with these GPUs and batches. Names the nearest numbers of GPUs and the
// nearest batches that are possible, and the options that exclude configurations.
std::string why_nothing_is_possible(const PlanQuestion& question);

// Explains that every possible configuration needs more memory than there is. `table` has no cells, but holds the
// configuration that needs the least memory.
std::string why_nothing_fits(const PlanQuestion& question, const PerformanceTable& table);

}  // namespace copus
