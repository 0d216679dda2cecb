// What earlier measurements say of the steps of a run: read from the run's own profile or the one that it names.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "copus/config/run_config.h"
#include "copus/report/performance_profile.h"

namespace copus {

struct StepTimeKnowledge {
  PerformanceProfile profile;
  std::string grounds;  // for people: what it goes by
};

// Of a run whose precision is not automatic; empty where nothing says how fast the cluster computes. What is known
// comes from `own_profile`, the run's own where it goes on (a path without a file: it has none), or else from
// cluster.profile. Throws UserError when either is damaged, and when the latter is of something else or there is
// nothing to correct; the former then only counts for nothing, since a run may go on with another cluster.
std::optional<StepTimeKnowledge> knowledge_of_run(const RunConfig& config, const std::filesystem::path& own_profile);

}  // namespace copus
