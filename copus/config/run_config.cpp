#include "copus/config/run_config.h"

#include <algorithm>
#include <limits>

namespace copus {

Configuration configuration_of(const JobConfig& config) {
  return {
      .strategy = config.parallel, .global_batch = config.train.global_batch, .micro_batch = config.train.micro_batch};
}

PredictedJob predicted_job(const RunConfig& config) {
  const ClusterConfig& cluster = config.cluster;
  PredictedJob job{config.model, config.train.sequence_length, config.execution.precision};
  if (!cluster.is_modelled()) return job;
  if (cluster.stands_for) job.model = *cluster.stands_for;
  if (cluster.stands_for_sequence_length > 0) job.sequence_length = cluster.stands_for_sequence_length;
  if (cluster.stands_for_precision != Precision::automatic) job.precision = cluster.stands_for_precision;
  return job;
}

std::optional<std::string> infeasible_reason(const RunConfig& config, const Configuration& configuration) {
  const PredictedJob job = predicted_job(config);
  return infeasible_reason(job.model, configuration, job.sequence_length);
}

std::optional<std::string> infeasible_reason(const AdvisedConfig& config, const Configuration& configuration) {
  return infeasible_reason(configuration, config.train.sequence_length);
}

const JobConfig& job_of(const AnyConfig& config) {
  return std::visit([](const JobConfig& job) -> const JobConfig& { return job; }, config);
}

int64_t num_training_ranks(const RunConfig& config) {
  return config.cluster.is_modelled() ? 1 : config.parallel.world_size();
}

ClusterDescription ClusterConfig::as_timed() const {
  ClusterDescription timed = description;
  if (clock != ClockKind::virtual_time && !is_modelled()) timed.flops_per_second = 0;
  return timed;
}

int64_t reference_batch_of(const JobConfig& config) {
  return config.optimizer.reference_batch > 0 ? config.optimizer.reference_batch : config.train.global_batch;
}

bool spares_tokens(const JobConfig& config) {
  if (config.adapt.objective != Objective::automatic) return config.adapt.objective == Objective::tokens;
  return limit_in_tokens(config.train) > 0;
}

ClusterDescription ClusterConfig::true_cluster() const { return truth.value_or(description); }

int64_t limit_in_tokens(const TrainConfig& train) {
  if (train.max_steps == 0 && train.max_tokens == 0) return 0;
  const int64_t most = std::numeric_limits<int64_t>::max();
  const int64_t tokens_per_step =
      (train.step_batch > 0 ? train.step_batch : train.global_batch) * train.sequence_length;
  // If this number of steps overflows an integer in tokens, steps do not limit the run.
  const int64_t by_steps =
      train.max_steps > 0 ? std::min(train.max_steps, most / tokens_per_step) * tokens_per_step : most;
  return std::min(by_steps, train.max_tokens > 0 ? train.max_tokens : most);
}

}  // namespace copus
