#include "copus/train/experiments/noise_reference.h"

#include "copus/base/error.h"
#include "copus/model/kernels/kernels.h"
#include "copus/train/step/gradient_reduction.h"

namespace copus {

NoiseReference::NoiseReference(ParameterStore& parameters, Decoder& decoder, const Dataset& dataset)
    : parameters_(parameters), decoder_(decoder), dataset_(dataset) {
  COPUS_CHECK(parameters.placement().strategy.world_size() == 1);
  for (const Bucket& bucket : parameters.buckets()) {
    sums_.push_back(bucket.master.defined()
                        ? kernels::zeros({bucket.size()}, bucket.gradient.scalar_type(), bucket.gradient.device())
                        : at::Tensor());
  }
}

NormObservation NoiseReference::observe(uint64_t first_sample, int64_t batch) {
  COPUS_CHECK(batch >= 2, "batch ", batch);
  const Batch samples = dataset_.train_batch(first_sample, batch);
  const int64_t length = std::ssize(samples.tokens) / batch;
  const auto size = static_cast<double>(batch);
  for (const at::Tensor& sum : sums_) {
    if (sum.defined()) sum.zero_();
  }
  kernels::NormSum squared_norms(parameters_.device()), squared_norm_of_sum(parameters_.device());
  for (int64_t sample = 0; sample < batch; ++sample) {
    const auto row = [&](const std::vector<int64_t>& values) {
      return kernels::from_host(values.data() + sample * length, {1, length}, parameters_.device());
    };
    kernels::Documents documents;
    if (!samples.document_starts.empty()) {
      documents = kernels::documents_from_host(samples.document_starts.data() + sample * length, 1, length,
                                               parameters_.device());
    }
    parameters_.zero_gradients();
    decoder_.forward_backward(row(samples.tokens), row(samples.targets),
                              size / static_cast<double>(samples.loss_tokens), documents);
    add_tied_gradient(parameters_);
    for (size_t b = 0; b < sums_.size(); ++b) {
      if (!sums_[b].defined()) continue;
      const Bucket& bucket = parameters_.buckets()[b];
      squared_norms.add(bucket.gradient, 0, bucket.size());
      sums_[b].add_(bucket.gradient);
    }
  }
  for (const at::Tensor& sum : sums_) {
    if (sum.defined()) squared_norm_of_sum.add(sum, 0, sum.numel());
  }
  return {.small_batch = 1,
          .small_squared_norm = squared_norms.take().value() / size,
          .large_batch = size,
          .large_squared_norm = squared_norm_of_sum.take().value() / (size * size)};
}

}  // namespace copus
