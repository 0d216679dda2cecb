// Training on the modelled clock: the part of Trainer that does on one rank what the modelled job's ranks would do
// together.
#include <algorithm>

#include "copus/train/trainer/trainer.h"

namespace copus {

// Leaves the sum of all gradients in the main gradients, which must be zero before. If the modelled job would measure
// norms of its data-parallel ranks' gradients, this function computes the samples of each data-parallel rank (a share
// of the step) one after another. Each share has its own prefix if the ranks would measure prefixes. How a share is
// split into micro-batches affects only rounding.
Trainer::StepGradients Trainer::compute_modelled_gradients(const ProbePlan& plan, double loss_scale) {
  StepGradients gradients;
  std::vector<at::Tensor> sums;  // by bucket: sums over all shares before the latest
  const std::vector<Bucket>& buckets = model_->parameters.buckets();
  const auto set_aside = [&] {
    for (size_t b = 0; b < buckets.size(); ++b) {
      if (sums.size() < buckets.size()) {
        sums.push_back(buckets[b].gradient.clone());
      } else {
        sums[b].add_(buckets[b].gradient);
      }
    }
    model_->parameters.zero_gradients();
  };
  const bool has_prefixes = plan.source == ProbeSource::prefix_of_each_rank;
  const ProbeSource source = has_prefixes ? ProbeSource::prefix : plan.source;
  const bool by_rank = has_prefixes || plan.source == ProbeSource::rank;
  const int64_t shares = by_rank ? configuration().strategy.data_parallel : 1;
  for (int64_t share = 0; share < shares; ++share) {
    if (share > 0) set_aside();
    recorder_.begin({.category = "data", .name = "data", .part = {}}, "reading data");
    const int64_t samples = configuration().global_batch / shares;
    run_modelled(read_share(source, plan, share, samples, loss_scale), source, gradients);
  }
  for (size_t b = 0; b < sums.size(); ++b) buckets[b].gradient.add_(sums[b]);
  return gradients;
}

// Adds the gradients of these micro-batches to the main gradients.
void Trainer::run_modelled(const std::vector<MicroBatch>& micro_batches, ProbeSource source, StepGradients& gradients) {
  const ParallelStrategy& strategy = executed_.strategy;
  const Schedule schedule =
      make_schedule(strategy.schedule, strategy.pipeline_parallel, strategy.virtual_stages, std::ssize(micro_batches));
  model_->probe.begin(source, micro_batches.front());
  gradients.losses.push_back(
      model_->executor.run(schedule, micro_batches, model_->reduction, model_->probe, recorder_));
  recorder_.wait_at("adding up gradients");
  model_->reduction.finish();
  model_->probe.finish();
  gradients.small_squared_norms.add(model_->probe.take());
}

// Returns the samples that data-parallel rank `share` of the modelled job reads in this step, as micro-batches of
// executed_.micro_batch samples, the size that this process really trains with. If the probe reads a prefix, the first
// micro-batch has the size of that prefix.
std::vector<MicroBatch> Trainer::read_share(ProbeSource source, const ProbePlan& plan, int64_t share, int64_t samples,
                                            double loss_scale) const {
  std::vector<MicroBatch> micro_batches;
  for (int64_t done = 0; done < samples;) {
    const bool is_probed = done == 0 && source == ProbeSource::prefix;
    const int64_t count = std::min(is_probed ? plan.small_batch : executed_.micro_batch, samples - done);
    const auto first = state_.data_position() + static_cast<uint64_t>(share * samples + done);
    micro_batches.push_back(to_micro_batch(dataset_.train_batch(first, count), count, loss_scale));
    done += count;
  }
  return micro_batches;
}

// Moves no tensor; only the configuration whose time the clock models changes.
void Trainer::make_modelled_switch(const SwitchIntent& intent, SwitchReport& report) {
  report.pause_seconds = modelled_->pause_seconds(report.from, report.to);
  change_configuration(intent);
  state_.elapsed_seconds += report.pause_seconds;
  clock_.add_pause(report.pause_seconds);
}

}  // namespace copus
