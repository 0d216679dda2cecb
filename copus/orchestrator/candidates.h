// Lists the configurations that a run chooses among.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "copus/config/run_config.h"
#include "copus/description/search_space.h"
#include "copus/orchestrator/policy.h"
#include "copus/performance/table.h"

namespace copus {

// The configurations that [adapt] allows, the run's own included. If [adapt] names no batches, they are doublings from
// a quarter of the run's batch, or of the learning rate's reference batch if that is smaller, to 64 times the run's
// batch. So a run that begins in a large batch can reach the small batch that its rate is for. `ranks` is the number of
// ranks, if it differs from that of the run's own configuration.
SearchSpace search_space_of(const RunConfig& config, std::optional<int64_t> ranks = std::nullopt);

// The batches that [adapt] allows for a job that another program trains with micro-batches of its own. If [adapt] names
// none, they are doublings and halvings of the job's batch and of the learning rate's reference batch, in the same
// range.
std::vector<int64_t> batches_of(const AdvisedConfig& config);

// Predicts the step times of all configurations that search_space_of returns. Throws UserError if the cluster's speed
// is not described.
PerformanceTable predicted_table(const RunConfig& config, const Knowledge& knowledge,
                                 std::optional<int64_t> ranks = std::nullopt);

// Makes candidates of the table's cells and of `current`, which the table may lack in a resumed or forced run. For
// policies that use the noise scale, configurations that never or rarely measure it are left out, except `current`. A
// batch of one sample never measures it. If a step is one micro-batch, only every noise_scale.split_interval-th step
// measures it; such a configuration stays a candidate if its layout has no other one of that batch.
std::vector<Candidate> candidates_of(const PerformanceTable& table, const Candidate& current, const JobConfig& config);

}  // namespace copus
