// Returns the configuration in which a new run begins. This is the configuration that the user describes, except for
// policies that choose a layout before the run.
#pragma once

#include "copus/config/run_config.h"
#include "copus/description/parallel_strategy.h"

namespace copus {

// Returns configuration_of(config), except for three policies. `static-best` and `cbs-pessimistic` begin in the layout
// and micro-batch that are predicted to be fastest at train.global_batch. `cbs-optimistic` begins at that batch, in the
// layout that is predicted to be fastest at the largest batch. A run that only advises begins as described. The
// precision must not be automatic. Throws UserError if one of these predictions is needed but the cluster's speed is
// not described.
Configuration starting_configuration(const RunConfig& config);

}  // namespace copus
