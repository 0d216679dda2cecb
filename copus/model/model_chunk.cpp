#include "copus/model/model_chunk.h"

#include <optional>
#include <utility>
#include <vector>

#include "copus/base/error.h"
#include "copus/model/decoder_layer.h"
#include "copus/model/input_embedding.h"
#include "copus/model/kernels.h"
#include "copus/model/output_head.h"
#include "copus/model/rotary_table.h"

namespace copus {

struct ChunkActivations::Content {
  std::vector<LayerActivations> layers;
  ResidualStream stream;  // on the last chunk, what enters the head
};

ChunkActivations::ChunkActivations() : content_(std::make_unique<Content>()) {}
ChunkActivations::~ChunkActivations() = default;
ChunkActivations::ChunkActivations(ChunkActivations&&) noexcept = default;
ChunkActivations& ChunkActivations::operator=(ChunkActivations&&) noexcept = default;

struct ModelChunk::Implementation {
  ParameterStore& parameters;
  Recompute recompute;
  TensorParallel tensor_parallel;
  RotaryTable rotary;
  std::optional<InputEmbedding> embedding;
  std::vector<DecoderLayer> layers;
  std::optional<OutputHead> head;
  // Indices of the buckets: the embedding's, those of the layers, that of final norm and head, a tied head's.
  std::vector<int64_t> buckets;

  Implementation(ParameterStore& store, int64_t chunk, Recompute mode, const TensorParallel& group)
      : parameters(store),
        recompute(mode),
        tensor_parallel(group),
        rotary(store.model(), store.master_dtype(), store.device()) {
    const Placement& placement = store.placement();
    const ParallelStrategy& strategy = placement.strategy;
    COPUS_CHECK(chunk >= 0 && chunk < strategy.virtual_stages, "chunk ", chunk, " of ", strategy.virtual_stages);
    COPUS_CHECK(group.size() == strategy.tensor_parallel && group.rank() == placement.here.tensor, "rank ",
                group.rank(), " of ", group.size(), " computes with a part for rank ", placement.here.tensor, " of ",
                strategy.tensor_parallel);
    const int64_t stage = chunk * strategy.pipeline_parallel + placement.here.pipeline;
    if (stage == 0) embedding.emplace(store, group);
    const LayerRange range = placement.stages.at(static_cast<size_t>(stage));
    for (int64_t layer = range.begin; layer < range.end; ++layer) layers.emplace_back(store, layer, group);
    if (stage == strategy.num_stages() - 1) head.emplace(store, group);
    for (int64_t i = 0; i < static_cast<int64_t>(store.buckets().size()); ++i) {
      if (store.buckets()[static_cast<size_t>(i)].chunk == chunk) buckets.push_back(i);
    }
  }

  kernels::AttentionShape shape_of(const MicroBatch& micro_batch) const {
    return local_attention_shape(parameters.model(), tensor_parallel, micro_batch.tokens);
  }

  // Embedding and layers.
  ResidualStream forward(const MicroBatch& micro_batch, const at::Tensor& input, std::vector<LayerActivations>* kept) {
    const kernels::AttentionShape shape = shape_of(micro_batch);
    const RotaryTable::Rows rows = rotary.rows(0, shape.sequence);
    ResidualStream stream{embedding ? embedding->forward(micro_batch.tokens.reshape({-1})) : input, {}};
    if (kept) kept->resize(layers.size());
    for (size_t i = 0; i < layers.size(); ++i) {
      stream = layers[i].forward(stream, shape, rows, recompute, kept ? &(*kept)[i] : nullptr);
    }
    return stream;
  }
};

ModelChunk::ModelChunk(ParameterStore& parameters, int64_t chunk, Recompute recompute,
                       const TensorParallel& tensor_parallel)
    : implementation_(std::make_unique<Implementation>(parameters, chunk, recompute, tensor_parallel)) {}
ModelChunk::~ModelChunk() = default;
ModelChunk::ModelChunk(ModelChunk&&) noexcept = default;

bool ModelChunk::is_first() const { return implementation_->embedding.has_value(); }
bool ModelChunk::is_last() const { return implementation_->head.has_value(); }

at::Tensor ModelChunk::empty_stream(const MicroBatch& micro_batch) const {
  const Implementation& chunk = *implementation_;
  return kernels::empty(
      {chunk.tensor_parallel.local_rows(micro_batch.tokens.numel()), chunk.parameters.model().hidden_size},
      chunk.parameters.compute_dtype(), chunk.parameters.device());
}

at::Tensor ModelChunk::forward(const MicroBatch& micro_batch, const at::Tensor& input, ChunkActivations& kept) {
  ResidualStream stream = implementation_->forward(micro_batch, input, &kept.content().layers);
  if (!is_last()) return stream.sum();
  kept.content().stream = std::move(stream);
  return {};
}

at::Tensor ModelChunk::backward(const MicroBatch& micro_batch, const at::Tensor& output_gradient, ChunkActivations kept,
                                WeightGradients& weight_gradients, const at::Tensor& loss_sum,
                                const std::function<void(int64_t bucket)>& bucket_done) {
  Implementation& chunk = *implementation_;
  COPUS_CHECK(!bucket_done || weight_gradients.mode() == WeightGradients::Mode::immediate,
              "deferred weight gradients are not done with their bucket");
  ChunkActivations::Content& content = kept.content();
  const kernels::AttentionShape shape = chunk.shape_of(micro_batch);
  const RotaryTable::Rows rows = chunk.rotary.rows(0, shape.sequence);
  const size_t first_layer = chunk.embedding ? 1 : 0;  // its bucket
  const auto done = [&](size_t bucket) {
    if (bucket_done) bucket_done(chunk.buckets[bucket]);
  };

  at::Tensor gradient = output_gradient;
  if (chunk.head) {
    gradient = chunk.head->backward(std::exchange(content.stream, {}), micro_batch.targets.reshape({-1}),
                                    micro_batch.loss_scale, loss_sum);
    for (size_t bucket = first_layer + chunk.layers.size(); bucket < chunk.buckets.size(); ++bucket) done(bucket);
  }
  for (size_t i = chunk.layers.size(); i-- > 0;) {
    gradient = chunk.layers[i].backward(gradient, std::move(content.layers[i]), shape, rows, weight_gradients);
    done(first_layer + i);
  }
  if (!chunk.embedding) return gradient;
  chunk.embedding->backward(gradient, micro_batch.tokens.reshape({-1}));
  done(0);
  return {};
}

at::Tensor ModelChunk::evaluate(const MicroBatch& micro_batch, const at::Tensor& input, const at::Tensor& loss_sum) {
  const ResidualStream stream = implementation_->forward(micro_batch, input, nullptr);
  if (!is_last()) return stream.sum();
  implementation_->head->loss(stream, micro_batch.targets.reshape({-1}), loss_sum);
  return {};
}

}  // namespace copus
