#include "copus/model/layers/decoder.h"

#include "copus/base/error.h"
#include "copus/model/kernels/kernels.h"
#include "copus/model/layers/attention_block.h"

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

at::Tensor Decoder::forward_backward(const at::Tensor& tokens, const at::Tensor& targets, double loss_scale,
                                     const kernels::Documents& documents) {
  const MicroBatch micro_batch{.tokens = tokens, .targets = targets, .loss_scale = loss_scale, .documents = documents};
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
  ResidualStream stream{embedding_.forward(tokens, embedding_.positions_from(tokens, 0)), {}};
  for (int64_t layer = 0; layer < model_.num_layers; ++layer) {
    const LayerContext context{local_attention_shape(model_, layer, TensorParallel(), tokens),
                               rotary_.rows(layer, 0, tokens.size(1))};
    stream = layers_[layer].forward(stream, context, Recompute::none, nullptr);
  }
  return head_.logits(head_.normalize(stream).normed).view({tokens.size(0), tokens.size(1), -1});
}

at::Tensor Decoder::next_logits(const at::Tensor& tokens, KeyValueCache& cache) {
  const int64_t sequence = tokens.size(1), length = cache.length_ + sequence;
  COPUS_CHECK(length <= cache.keys_.front().size(2), "the key-value cache holds ", cache.keys_.front().size(2));
  cache.tokens_.narrow(1, cache.length_, sequence).copy_(tokens);
  if (rotary_.changes_between(cache.length_, length)) {
    // Cached keys have the rotary angles of shorter sequences, so all positions are computed again.
    cache.length_ = 0;
    return next_logits(cache.tokens_.narrow(1, 0, length).contiguous(), cache);
  }
  ResidualStream stream{embedding_.forward(tokens, embedding_.positions_from(tokens, cache.length_)), {}};
  for (int64_t layer = 0; layer < model_.num_layers; ++layer) {
    const LayerContext context{local_attention_shape(model_, layer, TensorParallel(), tokens),
                               rotary_.rows(layer, cache.length_, sequence), cache.keys_[layer].narrow(2, 0, length),
                               cache.values_[layer].narrow(2, 0, length)};
    stream = layers_[layer].forward(stream, context, Recompute::none, nullptr);
  }
  cache.length_ = length;
  const at::Tensor normed = head_.normalize(stream).normed.view({tokens.size(0), sequence, -1});
  return head_.logits(normed.select(1, sequence - 1).contiguous());
}

KeyValueCache::KeyValueCache(const ParameterStore& parameters, int64_t batch, int64_t capacity) {
  const ModelDescription& model = parameters.model();
  tokens_ = kernels::empty({batch, capacity}, at::kLong, parameters.device());
  for (int64_t layer = 0; layer < model.num_layers; ++layer) {
    const std::vector<int64_t> shape{batch, model.num_kv_heads, capacity, model.head_dim};
    keys_.push_back(kernels::empty(shape, parameters.compute_dtype(), parameters.device()));
    values_.push_back(kernels::empty(shape, parameters.compute_dtype(), parameters.device()));
  }
}

}  // namespace copus
