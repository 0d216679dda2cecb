#include "copus/train/trainer/modelled_training.h"

#include <algorithm>
#include <cstddef>
#include <vector>

namespace copus {

namespace {

// Returns the number of samples of each micro-batch of a share (the samples of one data-parallel rank of the modelled
// job). Micro-batches have the size with which this process is fast. If the first micro-batch is probed, its size is
// the probe's.
std::vector<int64_t> micro_batches_of(int64_t samples, int64_t micro_batch, ProbeSource source, int64_t prefix) {
  std::vector<int64_t> counts;
  for (int64_t done = 0; done < samples; done += counts.back()) {
    const bool is_probed = done == 0 && source == ProbeSource::prefix;
    counts.push_back(std::min(is_probed ? prefix : micro_batch, samples - done));
  }
  return counts;
}

}  // namespace

StepGradients ModelledGradients::compute(const ProbePlan& plan, double loss_scale) {
  RankModel& model = *training_.model;
  const Configuration& configuration = training_.configuration();
  const int64_t micro_batch = training_.executed().micro_batch;
  StepGradients gradients;
  std::vector<at::Tensor> sums;  // by bucket: sums over all shares before the latest
  const std::vector<Bucket>& buckets = model.parameters.buckets();
  const auto set_aside = [&] {
    for (size_t b = 0; b < buckets.size(); ++b) {
      if (sums.size() < buckets.size()) {
        sums.push_back(buckets[b].gradient.clone());
      } else {
        sums[b].add_(buckets[b].gradient);
      }
    }
    model.parameters.zero_gradients();
  };
  const bool has_prefixes = plan.source == ProbeSource::prefix_of_each_rank;
  const ProbeSource source = has_prefixes ? ProbeSource::prefix : plan.source;
  const bool by_rank = has_prefixes || plan.source == ProbeSource::rank;
  const int64_t shares = by_rank ? configuration.strategy.data_parallel : 1;
  const int64_t samples = configuration.global_batch / shares;
  const std::vector<int64_t> counts = micro_batches_of(samples, micro_batch, source, plan.small_batch);
  for (int64_t share = 0; share < shares; ++share) {
    if (share > 0) set_aside();
    training_.recorder.begin({.category = "data", .name = "data", .part = {}}, "reading data");
    const uint64_t first = training_.state.data_position() + static_cast<uint64_t>(share * samples);
    gradients.losses.push_back(
        run_schedule(read_micro_batches(training_, first, counts, loss_scale), source, training_));
    gradients.small_squared_norms.add(model.probe.take());
  }
  for (size_t b = 0; b < sums.size(); ++b) buckets[b].gradient.add_(sums[b]);
  return gradients;
}

void ModelledGradients::set_seconds(StepAgreement& agreed) {
  agreed.seconds = agreed.seconds_of_rank_0 = job_.step_seconds(training_.configuration());
}

PendingSwitch ModelledSwitch::prepare(const SwitchIntent& intent) {
  return {.intent = intent, .refusal = job_.obstacle_to(intent.configuration)};
}

double ModelledSwitch::commit(PendingSwitch& /*pending*/, SwitchReport& report) {
  report.pause_seconds = job_.pause_seconds(report.from, report.to);
  return report.pause_seconds;
}

}  // namespace copus
