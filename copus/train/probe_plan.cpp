#include "copus/train/probe_plan.h"

#include <algorithm>

#include "copus/base/error.h"

namespace copus {

namespace {

int64_t samples_per_rank(const RunConfig& config) { return config.train.global_batch / config.parallel.data_parallel; }

bool is_one_micro_batch(const RunConfig& config) {
  return config.parallel.data_parallel == 1 && samples_per_rank(config) <= config.train.micro_batch;
}

// Sequence-parallel ranks share the tokens of a micro-batch evenly.
bool can_run(int64_t samples, const RunConfig& config) {
  return !config.parallel.sequence_parallel ||
         samples * config.train.sequence_length % config.parallel.tensor_parallel == 0;
}

}  // namespace

std::optional<std::string> why_noise_is_not_measured(const RunConfig& config) {
  if (!is_one_micro_batch(config)) return std::nullopt;
  const int64_t samples = config.train.global_batch, half = samples / 2;
  if (half == 0) {
    return "a step is one sample, and two batch sizes are needed: raise train.global_batch to at least 2";
  }
  if (can_run(half, config) && can_run(samples - half, config)) return std::nullopt;
  return concat("a step is one micro-batch, and parallel.tensor_parallel ", config.parallel.tensor_parallel,
                " ranks cannot share the tokens of half of it: lower train.micro_batch or raise train.global_batch so "
                "that a step has several micro-batches, or set parallel.sequence_parallel = false");
}

ProbePlan plan_probe(const RunConfig& config, int64_t step, bool measure) {
  const int64_t samples = samples_per_rank(config);
  ProbePlan plan;
  for (int64_t done = 0; done < samples; done += plan.micro_batches.back()) {
    plan.micro_batches.push_back(std::min(config.train.micro_batch, samples - done));
  }
  if (!measure) return plan;
  if (plan.micro_batches.size() > 1) {
    plan.source = ProbeSource::prefix;
  } else if (config.parallel.data_parallel > 1) {
    plan.source = ProbeSource::rank;
  } else if (step % config.noise_scale.split_interval == 0 && !why_noise_is_not_measured(config)) {
    plan.source = ProbeSource::prefix;
    plan.micro_batches = {samples / 2, samples - samples / 2};
  } else {
    return plan;
  }
  plan.small_batch = plan.micro_batches.front();
  return plan;
}

}  // namespace copus
