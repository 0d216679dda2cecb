#include "copus/model/layers/model_chunk.h"

#include <ATen/ops/arange.h>

#include <utility>

#include "copus/base/error.h"
#include "copus/model/kernels/kernels.h"
#include "copus/model/layers/attention_block.h"

namespace copus {

at::Tensor MicroBatch::positions() const {
  if (!documents.defined()) return {};
  return at::arange(tokens.size(1), tokens.options()).sub(documents.starts).reshape({-1});
}

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
  first_layer_of_model_ = range.begin;
  for (int64_t layer = range.begin; layer < range.end; ++layer) {
    layers_.emplace_back(parameters, layer, tensor_parallel);
  }
  if (stage == strategy.num_stages() - 1) head_.emplace(parameters, tensor_parallel);
  for (int64_t i = 0; i < std::ssize(parameters.buckets()); ++i) {
    if (parameters.buckets()[i].chunk == chunk) buckets_.push_back(i);
  }
  first_layer_ = embedding_ ? 1 : 0;
  for (size_t i = first_layer_ + layers_.size(); i < buckets_.size(); ++i) {
    const bool reads_embedding = !parameters.buckets()[buckets_[i]].weight.defined();
    head_weights_.push_back(reads_embedding ? parameters.find(token_embedding_name).bucket : buckets_[i]);
  }
}

// Reports to a BucketUse; null: does nothing.
class ModelChunk::Use {
 public:
  explicit Use(BucketUse* use) : use_(use) {}

  template <class Compute>
  void weights(const std::vector<int64_t>& buckets, const Compute& compute) const {
    for (const int64_t bucket : buckets) {
      if (use_) use_->weights_begin(bucket);
    }
    compute();
    for (const int64_t bucket : buckets) {
      if (use_) use_->weights_end(bucket);
    }
  }
  void gradient_begins(int64_t bucket) const {
    if (use_) use_->gradient_begins(bucket);
  }
  void gradient_ends(int64_t bucket) const {
    if (use_) use_->gradient_ends(bucket);
  }

 private:
  BucketUse* use_;
};

LayerContext ModelChunk::context_of(const MicroBatch& micro_batch, const ChunkPositions& positions,
                                    size_t layer) const {
  LayerContext context{
      .shape = local_attention_shape(parameters_.model(), first_layer_of_model_ + static_cast<int64_t>(layer),
                                     tensor_parallel_, micro_batch.tokens),
      .rotary = positions.rotations[layer]};
  context.shape.documents = micro_batch.documents;
  return context;
}

ChunkPositions ModelChunk::positions_of(const MicroBatch& micro_batch) {
  const at::Tensor in_documents = micro_batch.positions();
  return {!in_documents.defined() && embedding_ ? embedding_->positions_from(micro_batch.tokens, 0) : in_documents,
          rotary_.rows_of_layers(first_layer_of_model_, std::ssize(layers_), micro_batch.tokens.size(1), in_documents)};
}

ResidualStream ModelChunk::through_layers(const MicroBatch& micro_batch, const ChunkPositions& positions,
                                          const at::Tensor& input, std::vector<LayerActivations>* kept,
                                          const Use& use) {
  ResidualStream stream{input, {}};
  if (embedding_) {
    use.weights({buckets_.front()},
                [&] { stream.residual = embedding_->forward(micro_batch.tokens, positions.of_rows); });
  }
  if (kept) kept->resize(layers_.size());
  for (size_t i = 0; i < layers_.size(); ++i) {
    use.weights({buckets_[first_layer_ + i]}, [&] {
      stream =
          layers_[i].forward(stream, context_of(micro_batch, positions, i), recompute_, kept ? &(*kept)[i] : nullptr);
    });
  }
  return stream;
}

at::Tensor ModelChunk::empty_stream(const MicroBatch& micro_batch) const {
  return kernels::empty({tensor_parallel_.local_rows(micro_batch.tokens.numel()), parameters_.model().hidden_size},
                        parameters_.compute_dtype(), parameters_.device());
}

at::Tensor ModelChunk::forward(const MicroBatch& micro_batch, const at::Tensor& input, ChunkActivations& kept,
                               BucketUse* use) {
  kept.positions = positions_of(micro_batch);
  ResidualStream stream = through_layers(micro_batch, kept.positions, input, &kept.layers, Use(use));
  if (!is_last()) return stream.sum();
  kept.stream = std::move(stream);
  return {};
}

at::Tensor ModelChunk::backward(const MicroBatch& micro_batch, const at::Tensor& output_gradient, ChunkActivations kept,
                                WeightGradients& weight_gradients, const at::Tensor& loss_sum, BucketUse* told) {
  const Use use(told);
  const bool immediate = weight_gradients.mode() == WeightGradients::Mode::immediate;

  at::Tensor gradient = output_gradient;
  if (head_) {
    const size_t first = first_layer_ + layers_.size();
    for (size_t i = first; i < buckets_.size(); ++i) use.gradient_begins(buckets_[i]);
    use.weights(head_weights_, [&] {
      gradient = head_->backward(std::exchange(kept.stream, {}), micro_batch.targets.reshape({-1}),
                                 micro_batch.loss_scale, loss_sum);
    });
    for (size_t i = first; i < buckets_.size(); ++i) use.gradient_ends(buckets_[i]);
  }
  for (size_t i = layers_.size(); i-- > 0;) {
    const int64_t bucket = buckets_[first_layer_ + i];
    weight_gradients.begin_bucket(bucket);
    if (immediate) use.gradient_begins(bucket);
    use.weights({bucket}, [&] {
      gradient = layers_[i].backward(gradient, std::move(kept.layers[i]), context_of(micro_batch, kept.positions, i),
                                     weight_gradients);
    });
    if (immediate) use.gradient_ends(bucket);
  }
  if (!embedding_) return gradient;
  use.gradient_begins(buckets_.front());
  embedding_->backward(gradient, micro_batch.tokens, kept.positions.of_rows);
  use.gradient_ends(buckets_.front());
  return {};
}

at::Tensor ModelChunk::evaluate(const MicroBatch& micro_batch, const at::Tensor& input, const at::Tensor& loss_sum,
                                BucketUse* told) {
  const Use use(told);
  const ResidualStream stream = through_layers(micro_batch, positions_of(micro_batch), input, nullptr, use);
  if (!is_last()) return stream.sum();
  use.weights(head_weights_, [&] { head_->loss(stream, micro_batch.targets.reshape({-1}), loss_sum); });
  return {};
}

std::vector<int64_t> ModelChunk::weights_of_forward() const {
  return {buckets_.begin(), buckets_.begin() + static_cast<std::ptrdiff_t>(first_layer_ + layers_.size())};
}

std::vector<int64_t> ModelChunk::weights_of_backward() const {
  std::vector<int64_t> buckets = head_weights_;
  for (size_t i = layers_.size(); i-- > 0;) buckets.push_back(buckets_[first_layer_ + i]);
  return buckets;
}

std::vector<int64_t> ModelChunk::weights_of_evaluation() const {
  std::vector<int64_t> buckets = weights_of_forward();
  buckets.insert(buckets.end(), head_weights_.begin(), head_weights_.end());
  return buckets;
}

}  // namespace copus
