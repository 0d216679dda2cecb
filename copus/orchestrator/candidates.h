// The configurations that a run chooses among.
#pragma once

#include "copus/config/run_config.h"
#include "copus/strategy/search_space.h"

namespace copus {

// What [adapt] allows around the configuration that the run describes, which is part of it.
SearchSpace search_space_of(const RunConfig& config);

}  // namespace copus
