#include "copus/train/probe_plan.h"

#include <algorithm>

#include "copus/base/error.h"

namespace copus {

namespace {

bool is_one_micro_batch(const Configuration& configuration) {
  return configuration.strategy.data_parallel == 1 && configuration.global_batch <= configuration.micro_batch;
}

// Tells whether sequence-parallel ranks can share the tokens of a micro-batch evenly.
bool can_run(int64_t samples, const ParallelStrategy& strategy, int64_t sequence_length) {
  return !strategy.sequence_parallel || samples * sequence_length % strategy.tensor_parallel == 0;
}

}  // namespace

int64_t samples_per_rank(const Configuration& configuration) {
  return configuration.global_batch / configuration.strategy.data_parallel;
}

std::optional<std::string> why_noise_is_not_measured(const RunConfig& config, const Configuration& configuration) {
  if (!is_one_micro_batch(configuration)) return std::nullopt;
  const int64_t samples = configuration.global_batch, half = samples / 2;
  if (half == 0) {
    return "a step is one sample, and two batch sizes are needed: raise train.global_batch to at least 2";
  }
  const ParallelStrategy& strategy = configuration.strategy;
  const int64_t length = predicted_job(config).sequence_length;
  if (can_run(half, strategy, length) && can_run(samples - half, strategy, length)) return std::nullopt;
  return concat("a step is one micro-batch, and parallel.tensor_parallel ", strategy.tensor_parallel,
                " ranks cannot share the tokens of half of it: lower train.micro_batch or raise train.global_batch so "
                "that a step has several micro-batches, or set parallel.sequence_parallel = false");
}

ProbePlan plan_probe(const RunConfig& config, const Configuration& configuration, int64_t step, bool measure) {
  const int64_t samples = samples_per_rank(configuration);
  ProbePlan plan;
  for (int64_t done = 0; done < samples; done += plan.micro_batches.back()) {
    plan.micro_batches.push_back(std::min(configuration.micro_batch, samples - done));
  }
  if (!measure) return plan;
  if (plan.micro_batches.size() > 1) {
    plan.source = ProbeSource::prefix;
  } else if (configuration.strategy.data_parallel > 1) {
    plan.source = ProbeSource::rank;
  } else if (step % config.noise_scale.split_interval == 0 && !why_noise_is_not_measured(config, configuration)) {
    plan.source = ProbeSource::prefix;
    plan.micro_batches = {samples / 2, samples - samples / 2};
  } else {
    return plan;
  }
  plan.small_batch = plan.micro_batches.front();
  return plan;
}

}  // namespace copus
