// The dense feed-forward block: an activation function between two products, with or without a gate.
#pragma once

#include <ATen/core/Tensor.h>

#include "copus/model/layers/block.h"

namespace copus {

class FeedForwardBlock : public Block {
 public:
  FeedForwardBlock(const ParameterStore& parameters, int64_t layer, const BlockDescription& block,
                   const TensorParallel& tensor_parallel);

 private:
  at::Tensor forward_inner(BlockActivations& a, const LayerContext& context) const override;
  at::Tensor backward_inner(at::Tensor all_dy, BlockActivations& a, const LayerContext& context,
                            WeightGradients& weight_gradients) const override;

  kernels::Activation activation_;
};

}  // namespace copus
