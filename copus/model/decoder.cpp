#include "copus/model/decoder.h"

#include "copus/base/error.h"
#include "copus/model/decoder_layer.h"
#include "copus/model/input_embedding.h"
#include "copus/model/kernels.h"
#include "copus/model/model_chunk.h"
#include "copus/model/output_head.h"

namespace copus {

struct Decoder::Implementation {
  ModelChunk chunk;
  const ModelDescription& model;
  // The same layers again, over the same weights, for what only a whole model on one rank does.
  RotaryTable rotary;
  InputEmbedding embedding;
  std::vector<DecoderLayer> layers;
  OutputHead head;

  Implementation(ParameterStore& store, Recompute recompute)
      : chunk(store, 0, recompute, TensorParallel()),
        model(store.model()),
        rotary(model, store.master_dtype(), store.device()),
        embedding(store, TensorParallel()),
        head(store, TensorParallel()) {
    for (int64_t layer = 0; layer < model.num_layers; ++layer) layers.emplace_back(store, layer, TensorParallel());
  }
};

Decoder::Decoder(ParameterStore& parameters, Recompute recompute)
    : implementation_(std::make_unique<Implementation>(parameters, recompute)) {}

Decoder::~Decoder() = default;

at::Tensor Decoder::forward_backward(const at::Tensor& tokens, const at::Tensor& targets, double loss_scale) {
  ModelChunk& chunk = implementation_->chunk;
  const MicroBatch micro_batch{tokens, targets, loss_scale};
  at::Tensor loss_sum = kernels::zeros({}, at::kDouble, tokens.device());
  ChunkActivations kept;
  chunk.forward(micro_batch, {}, kept);
  WeightGradients weight_gradients(WeightGradients::Mode::immediate);
  chunk.backward(micro_batch, {}, std::move(kept), weight_gradients, loss_sum);
  return loss_sum;
}

at::Tensor Decoder::loss(const at::Tensor& tokens, const at::Tensor& targets) {
  at::Tensor loss_sum = kernels::zeros({}, at::kDouble, tokens.device());
  implementation_->chunk.evaluate({tokens, targets}, {}, loss_sum);
  return loss_sum;
}

at::Tensor Decoder::logits(const at::Tensor& tokens) {
  Implementation& decoder = *implementation_;
  const kernels::AttentionShape shape = local_attention_shape(decoder.model, TensorParallel(), tokens);
  const RotaryTable::Rows rows = decoder.rotary.rows(0, shape.sequence);
  ResidualStream stream{decoder.embedding.forward(tokens.reshape({-1})), {}};
  for (const DecoderLayer& layer : decoder.layers) {
    stream = layer.forward(stream, shape, rows, Recompute::none, nullptr);
  }
  return decoder.head.logits(decoder.head.normalize(stream).normed).view({shape.batch, shape.sequence, -1});
}

at::Tensor Decoder::next_logits(const at::Tensor& tokens, KeyValueCache& cache) {
  Implementation& decoder = *implementation_;
  const kernels::AttentionShape shape = local_attention_shape(decoder.model, TensorParallel(), tokens);
  const int64_t length = cache.length_ + shape.sequence;
  COPUS_CHECK(length <= cache.keys_.front().size(2), "the key-value cache holds ", cache.keys_.front().size(2));
  const RotaryTable::Rows rows = decoder.rotary.rows(cache.length_, shape.sequence);
  ResidualStream stream{decoder.embedding.forward(tokens.reshape({-1})), {}};
  for (size_t i = 0; i < decoder.layers.size(); ++i) {
    stream = decoder.layers[i].forward_cached(stream, shape, rows, cache.keys_[i].narrow(2, 0, length),
                                              cache.values_[i].narrow(2, 0, length));
  }
  cache.length_ = length;
  const at::Tensor normed = decoder.head.normalize(stream).normed.view({shape.batch, shape.sequence, -1});
  return decoder.head.logits(normed.select(1, shape.sequence - 1).contiguous());
}

KeyValueCache::KeyValueCache(const ParameterStore& parameters, int64_t batch, int64_t capacity) {
  const ModelDescription& model = parameters.model();
  for (int64_t layer = 0; layer < model.num_layers; ++layer) {
    const std::vector<int64_t> shape{batch, model.num_kv_heads, capacity, model.head_dim};
    keys_.push_back(kernels::empty(shape, parameters.compute_dtype(), parameters.device()));
    values_.push_back(kernels::empty(shape, parameters.compute_dtype(), parameters.device()));
  }
}

}  // namespace copus
