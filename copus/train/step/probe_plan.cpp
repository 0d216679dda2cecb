#include "copus/train/step/probe_plan.h"

#include <algorithm>

#include "copus/base/error.h"

namespace copus {

namespace {

bool is_one_micro_batch(const Configuration& configuration) {
  return configuration.strategy.data_parallel == 1 && configuration.global_batch <= configuration.micro_batch;
}

// Returns whether sequence-parallel ranks can divide a micro-batch's tokens evenly.
bool can_run(int64_t samples, const ParallelStrategy& strategy, int64_t sequence_length) {
  return !strategy.sequence_parallel || samples * sequence_length % strategy.tensor_parallel == 0;
}

// Returns how many samples to split off a step of one micro-batch: as few as possible, from an eighth to half of the
// step, such that ranks can divide the tokens of both parts evenly. Empty if there are none. With k of B samples split
// off, the variance of the estimate of tr(Sigma) is proportional to (B + k) / (B - k). So the smallest part is best: at
// an eighth the variance is 9/7 of its minimum, at a half three times the minimum.
std::optional<int64_t> part_to_cut(const RunConfig& config, const Configuration& configuration) {
  const int64_t samples = configuration.global_batch, length = predicted_job(config).sequence_length;
  const ParallelStrategy& strategy = configuration.strategy;
  for (int64_t part = std::max<int64_t>(1, samples / 8); part <= samples / 2; ++part) {
    if (can_run(part, strategy, length) && can_run(samples - part, strategy, length)) return part;
  }
  return std::nullopt;
}

}  // namespace

int64_t samples_per_rank(const Configuration& configuration) {
  return configuration.global_batch / configuration.strategy.data_parallel;
}

bool measures_dual_norms(const RunConfig& config, int64_t step) {
  return config.noise_scale.dual_interval > 0 && step % config.noise_scale.dual_interval == 0;
}

std::optional<std::string> why_noise_is_not_measured(const RunConfig& config, const Configuration& configuration) {
  if (!is_one_micro_batch(configuration)) return std::nullopt;
  if (configuration.global_batch == 1) {
    return "a step is one sample, and two batch sizes are needed: raise train.global_batch to at least 2";
  }
  if (part_to_cut(config, configuration)) return std::nullopt;
  return concat(
      "a step is one micro-batch, and parallel.tensor_parallel ", configuration.strategy.tensor_parallel,
      " ranks cannot share the tokens of a part of it: lower train.micro_batch or raise train.global_batch so "
      "that a step has several micro-batches, or set parallel.sequence_parallel = false");
}

ProbePlan plan_probe(const RunConfig& config, const Configuration& configuration, int64_t step, bool measure) {
  const int64_t samples = samples_per_rank(configuration);
  ProbePlan plan;
  for (int64_t done = 0; done < samples; done += plan.micro_batches.back()) {
    plan.micro_batches.push_back(std::min(configuration.micro_batch, samples - done));
  }
  if (!measure) return plan;
  const bool is_dual = measures_dual_norms(config, step);
  // Prefers the ranks' gradients: they are independent parts of the batch, and estimate |G|^2 much better than one part
  // and the whole batch do.
  if (configuration.strategy.data_parallel > 1) {
    const bool reduces_each = configuration.strategy.cuts_gradients() && plan.micro_batches.size() > 1;
    plan.source = reduces_each ? ProbeSource::prefix_of_each_rank : ProbeSource::rank;
    plan.small_batch = reduces_each ? plan.micro_batches.front() : samples;
    plan.measures_dual_norms = is_dual;
    return plan;
  }
  if (plan.micro_batches.size() > 1) {
    plan.source = ProbeSource::prefix;
  } else {
    const std::optional<int64_t> part = part_to_cut(config, configuration);
    const bool is_split = step % config.noise_scale.split_interval == 0 || is_dual;
    if (!is_split || !part) return plan;
    plan.source = ProbeSource::prefix;
    plan.micro_batches = {*part, samples - *part};
  }
  plan.small_batch = plan.micro_batches.front();
  plan.measures_dual_norms = is_dual;
  return plan;
}

}  // namespace copus
