// Whether a layout's training state survives the loss of a machine.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "copus/description/parallel_strategy.h"

namespace copus {

// Returns whether every part of the state (weights, master weights, moments) is on at least two machines, so that it
// survives the loss of any one. `machines`: the machine of each rank; ranks beyond those of the layout are ignored.
// Elements that several tensor-parallel ranks hold, or a tied head, do not count as copies.
bool outlives_any_machine(const ParallelStrategy& strategy, const std::vector<int64_t>& machines);

// Chooses the members of a job that become the layout's ranks, by rank, such that the state survives the loss of any
// machine. It chooses the first members if possible, otherwise other members or another order, but the first member
// always comes first. Ranks of one copy stay on one machine as far as possible. `machines`: by member. Empty if no
// choice works.
std::optional<std::vector<int64_t>> members_that_outlive_any_machine(const ParallelStrategy& strategy,
                                                                     const std::vector<int64_t>& machines);

}  // namespace copus
