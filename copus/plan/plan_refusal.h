// Explains why there is no plan: the obstacle at every batch, and the smallest changes that would help.
#pragma once

#include <string>

#include "copus/plan/plan.h"

namespace copus {

// Explains why the GPUs and batches cannot be divided into any configuration. Names the nearest numbers of GPUs and the
// nearest batches that can be divided, and the options that exclude solutions.
std::string why_nothing_is_possible(const PlanQuestion& question);

// Explains that every possible configuration needs more memory than there is. `table` has no cells. It holds the
// smallest configuration that was too large.
std::string why_nothing_fits(const PlanQuestion& question, const PerformanceTable& table);

}  // namespace copus
