// Chooses the configuration in which a job continues after ranks were lost or joined.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "copus/config/run_config.h"
#include "copus/performance/measured/learning.h"

namespace copus {

// Chooses a configuration for at most `ranks` ranks (at least 1) that keeps the global batch of `current`. The result
// may have any layout that [adapt] allows, on any number of these ranks (search_space_of). It must be feasible and, if
// the devices' memory is described, fit into it. The configuration with the fewest seconds per step wins, as predicted
// and corrected by `knowledge`. Among equals, the configuration on most ranks wins. `current` is not preferred, even if
// it fits the ranks exactly. If `is_preferred` accepts some of these configurations, only they are considered. Empty if
// there is no such configuration at all.
//
// If the cluster's speed is not described, the configuration most similar to `current` wins, by these criteria in
// order: the most ranks; the same tensor and pipeline parallelism; the same micro-batch; the fewest micro-batches per
// rank; the fewest other options that differ; the first in the order of enumerate.
std::optional<Configuration> configuration_for_ranks(
    const RunConfig& config, const Configuration& current, int64_t ranks, const Knowledge& knowledge,
    const std::function<bool(const Configuration&)>& is_preferred = [](const Configuration&) { return true; });

}  // namespace copus
