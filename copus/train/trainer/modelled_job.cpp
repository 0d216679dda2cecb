#include "copus/train/trainer/modelled_job.h"

#include <algorithm>

#include "copus/base/error.h"
#include "copus/orchestrator/predictions/step_time_learner.h"

namespace copus {

namespace {

// Tokens of an executed micro-batch: enough for fast matrix products of a small model.
constexpr int64_t executed_tokens = 2048;

}  // namespace

ModelledJob::ModelledJob(const RunConfig& config)
    : job_(predicted_job(config)),
      num_ranks_(config.parallel.world_size()),
      truth_(job_.model, job_.sequence_length, config.cluster.true_cluster(), training_system_of(config),
             {.size = config.cluster.truth_layout_error, .seed = config.cluster.truth_seed}) {}

double ModelledJob::pause_seconds(const Configuration& from, const Configuration& to) {
  return from.strategy == to.strategy ? 0 : truth_.relayout_seconds(from.strategy, to.strategy);
}

std::optional<Obstacle> ModelledJob::obstacle_to(const Configuration& configuration) {
  const int64_t ranks = configuration.strategy.world_size();
  if (ranks != num_ranks_) return Obstacle{concat("a layout of ", ranks, " ranks in a job of ", num_ranks_)};
  if (const auto reason = infeasible_reason(job_.model, configuration, job_.sequence_length)) return Obstacle{*reason};
  if (const auto reason = truth_.why_too_large(configuration)) return Obstacle{*reason, true};
  return std::nullopt;
}

Configuration executed_configuration(const RunConfig& config, const Configuration& configuration) {
  if (!config.cluster.is_modelled()) return configuration;
  return {.strategy = {},
          .global_batch = configuration.global_batch,
          .micro_batch = std::max<int64_t>(1, executed_tokens / config.train.sequence_length)};
}

}  // namespace copus
