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

// The configurations that [adapt] allows around the one that the run describes, which is one of them. Where it names no
// batches, they are doublings from a quarter of the smaller of the run's batch and the learning rate's reference batch
// to 64 times the run's: a run that begins in a large batch may find its way to the small one that its rate is for.
// `ranks` are those that the configurations are for, where they are not as many as the run describes.
SearchSpace search_space_of(const RunConfig& config, std::optional<int64_t> ranks = std::nullopt);

// The batches that [adapt] allows to a job that another program trains, in micro-batches of its own. Where it names
// none, they are doublings and halves of the job's batch and of the learning rate's reference batch.
std::vector<int64_t> batches_of(const AdvisedConfig& config);

// Predicts the steps of all configurations that [adapt] allows on so many ranks, likewise. Throws UserError where
// nothing says how fast the cluster computes.
PerformanceTable predicted_table(const RunConfig& config, const Knowledge& knowledge,
                                 std::optional<int64_t> ranks = std::nullopt);

// Makes candidates of the cells of the table and of `current`, which a resumed or forced run may be in though the table
// does not have it. For a policy that goes by the noise scale, configurations that would leave it blind are left out,
// except `current`: a batch of one sample never shows the noise scale, and where a step is one micro-batch only every
// noise_scale.split_interval-th does; the latter stay where the layout has no other candidate of that batch.
std::vector<Candidate> candidates_of(const PerformanceTable& table, const Candidate& current, const JobConfig& config);

}  // namespace copus
