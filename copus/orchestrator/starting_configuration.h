// The configuration that a new run begins in: most begin as they are described, and policies that stand for a choice of
// layout beforehand begin in their layout.
#pragma once

#include "copus/config/run_config.h"
#include "copus/description/parallel_strategy.h"

namespace copus {

// Returns configuration_of(config), except for the policies `static-best` and `cbs-pessimistic`, which begin in the
// fastest layout and micro-batch of train.global_batch, and `cbs-optimistic`, which begins at that batch in the layout
// that is fastest at the largest one; as the cluster's description predicts. A run that only advises begins as
// described. The precision is not automatic. Throws UserError where nothing says how fast the cluster computes.
Configuration starting_configuration(const RunConfig& config);

}  // namespace copus
