// The whole decoder-only language model on one rank, over the weights of a ParameterStore: training as one ModelChunk,
// logits, and generation.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "copus/config/run_config.h"
#include "copus/model/layers/model_chunk.h"
#include "copus/model/memory/parameters.h"

namespace copus {

class KeyValueCache;

class Decoder {
 public:
  // `parameters` must outlive the decoder.
  Decoder(ParameterStore& parameters, Recompute recompute);

  // Runs one micro-batch forward and backward. Returns the unscaled sum of token losses, a float64 scalar tensor on the
  // device; reading it waits for the device, so read it once a step. tokens, targets: int64 [batch, sequence] on the
  // store's device. targets are already shifted; where there is no loss they are `ignored_target`. documents: as in
  // MicroBatch.
  //
  // Adds the gradient of loss_scale * (sum of token losses) to every parameter's main gradient; a tied head's gradient
  // is added to the tied copy, not to the embedding. With loss_scale = 1 / (tokens with loss in the global batch), the
  // micro-batches' gradients add up to the gradient of the mean loss.
  at::Tensor forward_backward(const at::Tensor& tokens, const at::Tensor& targets, double loss_scale,
                              const kernels::Documents& documents = {});

  // Returns the sum of token losses without gradients. Arguments and result are as above.
  at::Tensor loss(const at::Tensor& tokens, const at::Tensor& targets);

  // Returns the logits of every position: fp32 (float64 for float64 weights) [batch, sequence, vocab].
  at::Tensor logits(const at::Tensor& tokens);

  // Appends `tokens` [batch, n] to the cache, and returns the logits of the last position, [batch, vocab].
  at::Tensor next_logits(const at::Tensor& tokens, KeyValueCache& cache);

 private:
  ModelChunk chunk_;
  const ModelDescription& model_;
  // A second set of layers over the same weights, for functions that need the whole model on one rank.
  RotaryTable rotary_;
  InputEmbedding embedding_;
  std::vector<DecoderLayer> layers_;
  OutputHead head_;
};

// The keys and values of all positions so far, for generation.
class KeyValueCache {
 public:
  KeyValueCache(const ParameterStore& parameters, int64_t batch, int64_t capacity);
  int64_t length() const { return length_; }

 private:
  friend class Decoder;
  int64_t length_ = 0;
  at::Tensor tokens_;               // [batch, capacity]
  std::vector<at::Tensor> keys_;    // [batch, kv heads, capacity, head_dim] for each layer, compute dtype
  std::vector<at::Tensor> values_;  // same shapes
};

}  // namespace copus
