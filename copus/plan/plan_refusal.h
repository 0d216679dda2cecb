// Why there is no plan: what stands in the way at every batch, and the smallest changes that would help.
#pragma once

#include <string>

#include "copus/plan/plan.h"

namespace copus {

// For numbers that divide in no way: names the nearest numbers of GPUs and batches that do, and options to leave out.
std::string why_nothing_is_possible(const PlanQuestion& question);

// For a question whose every possible configuration needs more memory than there is. `table` has no cells, and holds
// the smallest of those that were too large.
std::string why_nothing_fits(const PlanQuestion& question, const PerformanceTable& table);

}  // namespace copus
