// Lists the configurations that a run chooses among.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "copus/config/run_config.h"
#include "copus/description/search_space.h"
#include "copus/orchestrator/policies/policy.h"
#include "copus/performance/measured/table.h"

namespace copus {

// Returns the configurations that [adapt] allows, including the run's own. `ranks` is the number of ranks, if it
// differs from the run's own configuration. If [adapt] names no batches, they are doublings up to 64 times the run's
// batch. The first is a quarter of the run's batch or, if smaller, of the learning rate's reference batch. A run that
// begins in a large batch can therefore reach the small batch for which its learning rate was tuned.
SearchSpace search_space_of(const RunConfig& config, std::optional<int64_t> ranks = std::nullopt);

// The batches that [adapt] allows for a job that another program trains with micro-batches of its own. If [adapt] names
// no batches, they are doublings and halvings of the job's batch and of the learning rate's reference batch, in the
// range of search_space_of.
std::vector<int64_t> batches_of(const AdvisedConfig& config);

// Predicts the step times of all configurations that search_space_of returns. Throws UserError if the cluster's speed
// is not described.
PerformanceTable predicted_table(const RunConfig& config, const Knowledge& knowledge,
                                 std::optional<int64_t> ranks = std::nullopt);

// Returns candidates made of the table's configurations and of `current`, which the table may lack in a resumed or
// forced run. For policies that use the noise scale, configurations that never or rarely measure it are left out,
// except `current`. A batch of one sample never measures the noise scale. A step of one micro-batch measures it only
// every noise_scale.split_interval-th time; such a configuration stays a candidate if no other configuration has its
// layout and batch.
std::vector<Candidate> candidates_of(const PerformanceTable& table, const Candidate& current, const JobConfig& config);

}  // namespace copus
