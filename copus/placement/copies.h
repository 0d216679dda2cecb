// Whether a layout's training state outlives the machines that its ranks are on.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "copus/description/parallel_strategy.h"

namespace copus {

// Whether every part of the state (weights, master weights, moments) is on two machines at least, so that it outlives
// any one of them. `machines`: by rank, the machine that it is on; ranks behind those of the layout do not count. What
// several tensor-parallel ranks or a tied head hold beside that is not counted as a copy.
bool outlives_any_machine(const ParallelStrategy& strategy, const std::vector<int64_t>& machines);

// The members of a job that become the layout's ranks, by rank, such that its state outlives any machine: the first
// ones where that is so, else others or in another order, the first of which is the first member all the same. Those of
// a copy stay together on a machine as far as they can. `machines`: by member. Empty where no choice of them does it.
std::optional<std::vector<int64_t>> members_that_outlive_any_machine(const ParallelStrategy& strategy,
                                                                     const std::vector<int64_t>& machines);

}  // namespace copus
