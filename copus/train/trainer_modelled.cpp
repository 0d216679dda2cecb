// Training on the modelled clock: the part of Trainer that does on one rank what the ranks of the modelled job would do
// together.
#include <utility>

#include "copus/train/trainer.h"

namespace copus {

// Leaves the sum of all gradients in the main gradients, which are zero before. The job's data-parallel ranks would
// read norms of the gradients of their first micro-batches, so those are computed one after the other, each by itself;
// which micro-batches the other samples are in changes nothing but rounding.
Trainer::StepGradients Trainer::compute_modelled_gradients(const ProbePlan& plan, double loss_scale) {
  StepGradients gradients;
  std::vector<at::Tensor> sums;  // by bucket, of the gradients before the latest
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
  if (plan.source != ProbeSource::none) {
    for (int64_t rank = 0; rank < configuration().strategy.data_parallel; ++rank) {
      recorder_.begin({.category = "data", .name = "data", .part = {}}, "reading data");
      const auto first = static_cast<uint64_t>(state_.consumed_samples + rank * samples_per_rank(configuration()));
      const Batch batch = dataset_.train_batch(first, plan.small_batch);
      run_modelled({to_micro_batch(batch, plan.small_batch, loss_scale)}, ProbeSource::prefix, gradients);
      set_aside();
    }
  }
  const std::vector<MicroBatch> others = read_unprobed(plan, loss_scale);
  if (!others.empty()) run_modelled(others, ProbeSource::none, gradients);
  for (size_t b = 0; b < sums.size(); ++b) buckets[b].gradient.add_(sums[b]);
  return gradients;
}

// Adds the gradients of these micro-batches to the main ones.
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

// Reads the samples of the step that are in no micro-batch whose norm is read, in micro-batches of the executed size.
std::vector<MicroBatch> Trainer::read_unprobed(const ProbePlan& plan, double loss_scale) const {
  const int64_t of_rank = samples_per_rank(configuration());
  Batch samples;
  int64_t count = 0;
  std::vector<MicroBatch> micro_batches;
  const auto take = [&] {
    micro_batches.push_back(to_micro_batch(samples, count, loss_scale));
    samples = {};
    count = 0;
  };
  for (int64_t sample = 0; sample < configuration().global_batch; ++sample) {
    if (sample % of_rank < plan.small_batch) continue;
    const Batch one = dataset_.train_batch(static_cast<uint64_t>(state_.consumed_samples + sample), 1);
    samples.tokens.insert(samples.tokens.end(), one.tokens.begin(), one.tokens.end());
    samples.targets.insert(samples.targets.end(), one.targets.begin(), one.targets.end());
    if (++count == executed_.micro_batch) take();
  }
  if (count > 0) take();
  return micro_batches;
}

// Moves no tensor: what changes is what the clock is of.
void Trainer::make_modelled_switch(const SwitchIntent& intent, SwitchReport& report) {
  report.pause_seconds = modelled_->pause_seconds(report.from, report.to);
  change_configuration(intent);
  state_.elapsed_seconds += report.pause_seconds;
  clock_.add_pause(report.pause_seconds);
}

}  // namespace copus
