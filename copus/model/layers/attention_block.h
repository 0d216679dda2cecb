// Attention as a block: queries, keys and values of some heads, and their rotation and norms.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "copus/model/layers/block.h"
#include "copus/model/layers/query_key_norm.h"

namespace copus {

class AttentionBlock : public Block {
 public:
  AttentionBlock(const ParameterStore& parameters, int64_t layer, const BlockDescription& block,
                 const TensorParallel& tensor_parallel);

  std::unique_ptr<BlockActivations> new_activations() const override;
  void drop_attention(BlockActivations& a) const override;

 private:
  struct Activations;

  at::Tensor forward_inner(BlockActivations& a, const LayerContext& context) const override;
  bool keeps_inner() const override { return true; }
  at::Tensor backward_inner(at::Tensor all_dy, BlockActivations& a, const LayerContext& context,
                            WeightGradients& weight_gradients) const override;
  // Returns the matrix that attention reads, with queries and keys rotated if the layer has rotary embeddings. If the
  // layer normalises queries and keys, this is a normalised copy; otherwise it is a.projected itself.
  at::Tensor normalize_and_rotate(const Activations& a, const LayerContext& context) const;

  bool has_rope_;
  QueryKeyNorm query_key_norm_;
};

// Returns the attention of a rank over a micro-batch of `tokens`, int64 [batch, sequence], with the window of `layer`.
// The rank has some of the query heads, and at least one key-value head: those that its query heads read.
kernels::AttentionShape local_attention_shape(const ModelDescription& model, int64_t layer,
                                              const TensorParallel& tensor_parallel, const at::Tensor& tokens);

}  // namespace copus
