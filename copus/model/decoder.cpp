#include "copus/model/decoder.h"

#include "copus/base/error.h"
#include "copus/model/kernels.h"

namespace copus {

Decoder::Decoder(ParameterStore& parameters, Recompute recompute)
    : chunk_(parameters, 0, recompute, TensorParallel()),
      model_(parameters.model()),
      rotary_(model_, parameters.master_dtype(), parameters.device()),
      embedding_(parameters, TensorParallel()),
      head_(parameters, TensorParallel()) {
  for (int64_t layer = 0; layer < model_.num_layers; ++layer) {
    layers_.emplace_back(parameters, layer, TensorParallel());
  }
}

at::Tensor Decoder::forward_backward(const at::Tensor& tokens, const at::Tensor& targets, double loss_scale) {
  const MicroBatch micro_batch{tokens, targets, loss_scale};
  at::Tensor loss_sum = kernels::zeros({}, at::kDouble, tokens.device());
  ChunkActivations kept;
  chunk_.forward(micro_batch, {}, kept);
  WeightGradients weight_gradients(WeightGradients::Mode::immediate);
  chunk_.backward(micro_batch, {}, std::move(kept), weight_gradients, loss_sum);
  return loss_sum;
}

at::Tensor Decoder::loss(const at::Tensor& tokens, const at::Tensor& targets) {
  at::Tensor loss_sum = kernels::zeros({}, at::kDouble, tokens.device());
  chunk_.evaluate({tokens, targets}, {}, loss_sum);
  return loss_sum;
}

at::Tensor Decoder::logits(const at::Tensor& tokens) {
  const kernels::AttentionShape shape = local_attention_shape(model_, TensorParallel(), tokens);
  const RotaryTable::Rows rows = rotary_.rows(0, shape.sequence);
  ResidualStream stream{embedding_.forward(tokens), {}};
  for (const DecoderLayer& layer : layers_) {
    stream = layer.forward(stream, shape, rows, Recompute::none, nullptr);
  }
  return head_.logits(head_.normalize(stream).normed).view({shape.batch, shape.sequence, -1});
}

at::Tensor Decoder::next_logits(const at::Tensor& tokens, KeyValueCache& cache) {
  const kernels::AttentionShape shape = local_attention_shape(model_, TensorParallel(), tokens);
  const int64_t length = cache.length_ + shape.sequence;
  COPUS_CHECK(length <= cache.keys_.front().size(2), "the key-value cache holds ", cache.keys_.front().size(2));
  const RotaryTable::Rows rows = rotary_.rows(cache.length_, shape.sequence);
  ResidualStream stream{embedding_.forward(tokens, cache.length_), {}};
  for (size_t i = 0; i < layers_.size(); ++i) {
    stream = layers_[i].forward_cached(stream, shape, rows, cache.keys_[i].narrow(2, 0, length),
                                       cache.values_[i].narrow(2, 0, length));
  }
  cache.length_ = length;
  const at::Tensor normed = head_.normalize(stream).normed.view({shape.batch, shape.sequence, -1});
  return head_.logits(normed.select(1, shape.sequence - 1).contiguous());
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
