// Decides whether a layout's training state survives the loss of a machine.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "copus/description/parallel_strategy.h"

namespace copus {

// Returns whether every part of the state (weights, master weights, moments) is on at least two machines, and so
// survives the loss of any one machine. `machines`: by rank; further elements are ignored. Replicas on tensor-parallel
// ranks and tied heads do not count as copies.
bool outlives_any_machine(const ParallelStrategy& strategy, const std::vector<int64_t>& machines);

// Chooses the members of a job that become the layout's ranks such that the state survives the loss of any machine.
// Returns members by rank. These are the first members in their order, if possible. Member 0 always becomes rank 0.
// Ranks of one copy stay on one machine as far as possible. `machines`: by member. Empty if no choice works.
std::optional<std::vector<int64_t>> members_that_outlive_any_machine(const ParallelStrategy& strategy,
                                                                     const std::vector<int64_t>& machines);

}  // namespace copus
