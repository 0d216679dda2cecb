// Chooses what a job trains in after its ranks have changed: when one was lost, or others have come.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "copus/config/run_config.h"
#include "copus/performance/learning.h"

namespace copus {

// Chooses a configuration with the global batch of `current` for at most `ranks` ranks (1 at least), among those that
// [adapt] allows in any layout and on any number of these ranks (search_space_of): of the feasible ones that fit the
// devices' memory, if that is described, the one with the least predicted seconds a step, corrected by `knowledge`;
// among equals the one on most ranks. `current` itself has no privilege, also where it fits the ranks exactly. Empty
// where nothing is feasible. Where something is that `is_preferred` holds for, it is chosen among that.
//
// Where nothing says how fast the cluster computes, it is what differs least from `current` on as many ranks as can be
// used: the most ranks; then tensor and pipeline parallelism as they are; then the micro-batch as it is; then the
// fewest micro-batches a rank; then the fewest other options that differ; then the first in the order of enumerate.
std::optional<Configuration> configuration_for_ranks(
    const RunConfig& config, const Configuration& current, int64_t ranks, const Knowledge& knowledge,
    const std::function<bool(const Configuration&)>& is_preferred = [](const Configuration&) { return true; });

}  // namespace copus
