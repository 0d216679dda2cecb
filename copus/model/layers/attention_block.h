// The attention block: the products before and after attention, norms and rotation of queries and keys.
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
  // Normalises and rotates queries and keys as the layer requires, and returns the matrix that attention reads. If the
  // layer normalises, the matrix is a copy; otherwise it is a.projected, overwritten.
  at::Tensor normalize_and_rotate(const Activations& a, const LayerContext& context) const;

  bool has_rope_;
  QueryKeyNorm query_key_norm_;
};

// Returns the shape of a rank's attention in `layer`, for a micro-batch of `tokens`, int64 [batch, sequence]. The rank
// has some of the query heads, and the key/value heads that these read (at least one).
kernels::AttentionShape local_attention_shape(const ModelDescription& model, int64_t layer,
                                              const TensorParallel& tensor_parallel, const at::Tensor& tokens);

}  // namespace copus
