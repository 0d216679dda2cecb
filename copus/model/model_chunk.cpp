#include "copus/model/model_chunk.h"

#include <utility>

#include "copus/base/error.h"
#include "copus/model/kernels.h"

namespace copus {

ModelChunk::ModelChunk(ParameterStore& parameters, int64_t chunk, Recompute recompute,
                       const TensorParallel& tensor_parallel)
    : parameters_(parameters),
      recompute_(recompute),
      tensor_parallel_(tensor_parallel),
      rotary_(parameters.model(), parameters.master_dtype(), parameters.device()) {
  const Placement& placement = parameters.placement();
  const ParallelStrategy& strategy = placement.strategy;
  COPUS_CHECK(chunk >= 0 && chunk < strategy.virtual_stages, "chunk ", chunk, " of ", strategy.virtual_stages);
  COPUS_CHECK(tensor_parallel.size() == strategy.tensor_parallel && tensor_parallel.rank() == placement.here.tensor,
              "rank ", tensor_parallel.rank(), " of ", tensor_parallel.size(), " computes with a part for rank ",
              placement.here.tensor, " of ", strategy.tensor_parallel);
  const int64_t stage = chunk * strategy.pipeline_parallel + placement.here.pipeline;
  if (stage == 0) embedding_.emplace(parameters, tensor_parallel);
  const LayerRange range = placement.stages.at(stage);
  for (int64_t layer = range.begin; layer < range.end; ++layer) {
    layers_.emplace_back(parameters, layer, tensor_parallel);
  }
  if (stage == strategy.num_stages() - 1) head_.emplace(parameters, tensor_parallel);
  for (int64_t i = 0; i < std::ssize(parameters.buckets()); ++i) {
    if (parameters.buckets()[i].chunk == chunk) buckets_.push_back(i);
  }
}

kernels::AttentionShape ModelChunk::shape_of(const MicroBatch& micro_batch) const {
  return local_attention_shape(parameters_.model(), tensor_parallel_, micro_batch.tokens);
}

// Runs the embedding and the layers forward.
ResidualStream ModelChunk::through_layers(const MicroBatch& micro_batch, const at::Tensor& input,
                                          std::vector<LayerActivations>* kept) {
  const kernels::AttentionShape shape = shape_of(micro_batch);
  const RotaryTable::Rows rows = rotary_.rows(0, shape.sequence);
  ResidualStream stream{embedding_ ? embedding_->forward(micro_batch.tokens.reshape({-1})) : input, {}};
  if (kept) kept->resize(layers_.size());
  for (size_t i = 0; i < layers_.size(); ++i) {
    stream = layers_[i].forward(stream, shape, rows, recompute_, kept ? &(*kept)[i] : nullptr);
  }
  return stream;
}

at::Tensor ModelChunk::empty_stream(const MicroBatch& micro_batch) const {
  return kernels::empty({tensor_parallel_.local_rows(micro_batch.tokens.numel()), parameters_.model().hidden_size},
                        parameters_.compute_dtype(), parameters_.device());
}

at::Tensor ModelChunk::forward(const MicroBatch& micro_batch, const at::Tensor& input, ChunkActivations& kept) {
  ResidualStream stream = through_layers(micro_batch, input, &kept.layers);
  if (!is_last()) return stream.sum();
  kept.stream = std::move(stream);
  return {};
}

at::Tensor ModelChunk::backward(const MicroBatch& micro_batch, const at::Tensor& output_gradient, ChunkActivations kept,
                                WeightGradients& weight_gradients, const at::Tensor& loss_sum,
                                const std::function<void(int64_t bucket)>& bucket_done) {
  COPUS_CHECK(!bucket_done || weight_gradients.mode() == WeightGradients::Mode::immediate,
              "deferred weight gradients are not done with their bucket");
  const kernels::AttentionShape shape = shape_of(micro_batch);
  const RotaryTable::Rows rows = rotary_.rows(0, shape.sequence);
  const size_t first_layer = embedding_ ? 1 : 0;  // position of the first layer's bucket
  const auto done = [&](size_t bucket) {
    if (bucket_done) bucket_done(buckets_[bucket]);
  };

  at::Tensor gradient = output_gradient;
  if (head_) {
    gradient = head_->backward(std::exchange(kept.stream, {}), micro_batch.targets.reshape({-1}),
                               micro_batch.loss_scale, loss_sum);
    for (size_t bucket = first_layer + layers_.size(); bucket < buckets_.size(); ++bucket) done(bucket);
  }
  for (size_t i = layers_.size(); i-- > 0;) {
    gradient = layers_[i].backward(gradient, std::move(kept.layers[i]), shape, rows, weight_gradients);
    done(first_layer + i);
  }
  if (!embedding_) return gradient;
  embedding_->backward(gradient, micro_batch.tokens.reshape({-1}));
  done(0);
  return {};
}

at::Tensor ModelChunk::evaluate(const MicroBatch& micro_batch, const at::Tensor& input, const at::Tensor& loss_sum) {
  const ResidualStream stream = through_layers(micro_batch, input, nullptr);
  if (!is_last()) return stream.sum();
  head_->loss(stream, micro_batch.targets.reshape({-1}), loss_sum);
  return {};
}

}  // namespace copus
