#include "copus/model/layers/feed_forward_block.h"

namespace copus {

FeedForwardBlock::FeedForwardBlock(const ParameterStore& parameters, int64_t layer, const BlockDescription& block,
                                   const TensorParallel& tensor_parallel)
    : Block(parameters, layer, block, tensor_parallel),
      activation_{parameters.model().activation, parameters.model().gated_feed_forward} {}

at::Tensor FeedForwardBlock::forward_inner(BlockActivations& a, const LayerContext& /*context*/) const {
  return kernels::activate(a.projected, activation_);
}

at::Tensor FeedForwardBlock::backward_inner(at::Tensor all_dy, BlockActivations& a, const LayerContext& /*context*/,
                                            WeightGradients& weight_gradients) const {
  at::Tensor gradient = kernels::linear_input_gradient(all_dy, output_layer().weight);
  kernels::ActivationGradient activation = kernels::activate_backward(gradient, a.projected, activation_);
  gradient.reset();
  a.projected.reset();
  weight_gradients.add(output_layer().weight_gradient, output_layer().bias_gradient, all_dy, activation.activation);
  return activation.input;
}

}  // namespace copus
