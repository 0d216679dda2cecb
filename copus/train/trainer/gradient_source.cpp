#include "copus/train/trainer/gradient_source.h"

#include "copus/model/kernels/kernels.h"

namespace copus {

namespace {

at::Tensor to_device(const std::vector<int64_t>& values, int64_t sequences, at::Device device) {
  const int64_t length = std::ssize(values) / sequences;
  return kernels::from_host(values.data(), {sequences, length}, device);
}

kernels::Documents documents_of(const Batch& batch, int64_t sequences, at::Device device) {
  if (batch.document_starts.empty()) return {};
  const int64_t length = std::ssize(batch.document_starts) / sequences;
  return kernels::documents_from_host(batch.document_starts.data(), sequences, length, device);
}

}  // namespace

// Each data-parallel rank reads its slice of the global batch. In any layout, the global batch consists of the next
// unconsumed samples.
StepGradients SharedGradients::compute(const ProbePlan& plan, double loss_scale) {
  training_.recorder.begin({.category = "data", .name = "data", .part = {}}, "reading data");
  const int64_t skipped = training_.model->groups.here().data * samples_per_rank(training_.configuration());
  const uint64_t first = training_.state.data_position() + static_cast<uint64_t>(skipped);
  const std::vector<MicroBatch> micro_batches = read_micro_batches(training_, first, plan.micro_batches, loss_scale);
  return {{run_schedule(micro_batches, plan.source, training_)}, {}};
}

std::vector<MicroBatch> read_micro_batches(const RankTraining& training, uint64_t first,
                                           const std::vector<int64_t>& counts, double loss_scale) {
  std::vector<MicroBatch> micro_batches;
  for (const int64_t count : counts) {
    micro_batches.push_back(
        to_micro_batch(training.dataset.train_batch(first, count), count, loss_scale, training.device));
    first += static_cast<uint64_t>(count);
  }
  return micro_batches;
}

MicroBatch to_micro_batch(const Batch& batch, int64_t sequences, double loss_scale, at::Device device) {
  return {.tokens = to_device(batch.tokens, sequences, device),
          .targets = to_device(batch.targets, sequences, device),
          .loss_scale = loss_scale,
          .host_tokens = batch.tokens,
          .documents = documents_of(batch, sequences, device)};
}

at::Tensor run_schedule(const std::vector<MicroBatch>& micro_batches, ProbeSource source, RankTraining& training) {
  RankModel& model = *training.model;
  const ParallelStrategy& strategy = model.strategy();
  const Schedule schedule =
      make_schedule(strategy.schedule, strategy.pipeline_parallel, strategy.virtual_stages, std::ssize(micro_batches));
  model.probe.begin(source, micro_batches.front());
  const at::Tensor losses =
      model.executor.run(schedule, micro_batches, model.reduction, model.probe, training.recorder);
  training.recorder.wait_at("adding up gradients");
  model.reduction.finish();
  model.probe.finish();
  return losses;
}

}  // namespace copus
