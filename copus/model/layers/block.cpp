#include "copus/model/layers/block.h"

#include <utility>
#include <vector>

#include "copus/base/error.h"
#include "copus/model/layers/attention_block.h"
#include "copus/model/layers/feed_forward_block.h"

namespace copus {
namespace {

Linear join_linear(const ParameterStore& parameters, const std::string& prefix,
                   const std::vector<BlockLinear>& layers) {
  std::vector<std::string> weights, biases;
  for (const BlockLinear& layer : layers) {
    weights.push_back(concat(prefix, layer.module, ".weight"));
    biases.push_back(concat(prefix, layer.module, ".bias"));
  }
  const JoinedParameters weight = parameters.join(weights);
  Linear linear{weight.weight, weight.gradient, {}, {}};
  if (layers.front().has_bias) {
    const JoinedParameters bias = parameters.join(biases);
    linear.bias = bias.weight;
    linear.bias_gradient = bias.gradient;
  }
  return linear;
}

}  // namespace

at::Tensor Linear::backward(const at::Tensor& dy, const at::Tensor& x, WeightGradients& weight_gradients) const {
  at::Tensor dx = kernels::linear_input_gradient(dy, weight);
  weight_gradients.add(weight_gradient, bias_gradient, dy, x);
  return dx;
}

Block::Block(const ParameterStore& parameters, int64_t layer, const BlockDescription& block,
             const TensorParallel& tensor_parallel)
    : tensor_parallel_(tensor_parallel), residual_multiplier_(parameters.model().residual_multiplier) {
  const std::string of_layer = concat("model.layers.", layer, "."), prefix = concat(of_layer, block.modules);
  if (block.norms.input != nullptr) input_norm_.emplace(parameters, of_layer + block.norms.input);
  if (block.norms.output != nullptr) output_norm_.emplace(parameters, of_layer + block.norms.output);
  input_layers_ = join_linear(parameters, prefix, block.inputs);
  output_layer_ = join_linear(parameters, prefix, {block.output});
  // Ranks sum their results, so only the first rank adds the bias. But every rank computes the full gradient of the
  // bias.
  if (tensor_parallel.rank() > 0) output_layer_.bias.reset();
}

ResidualStream Block::forward(const ResidualStream& in, const LayerContext& context, BlockActivations& a) const {
  enter(a, in);
  project(a);
  a.all_normed.reset();
  const at::Tensor inner = forward_inner(a, context);
  return {a.input, leave(a, inner)};
}

ResidualStream Block::rebuild(const ResidualStream& in, const LayerContext& context, bool needs_output,
                              BlockActivations& a) const {
  enter(a, in);
  project(a);
  const bool leaves = needs_output || output_norm_;
  if (!leaves && !keeps_inner()) return {a.input, {}};
  const at::Tensor inner = forward_inner(a, context);
  return {a.input, leaves ? leave(a, inner) : at::Tensor()};
}

void Block::enter(BlockActivations& a, const ResidualStream& in) const {
  if (!input_norm_) {
    a.input = a.normed = in.sum();
    return;
  }
  kernels::NormResult norm = input_norm_->forward(in.residual, in.delta);
  a.input = norm.sum;
  a.statistics = norm.statistics;
  a.normed = norm.normed;
}

void Block::project(BlockActivations& a) const {
  a.all_normed = tensor_parallel_.gather(a.normed);
  a.projected = input_layers_.forward(a.all_normed);
}

at::Tensor Block::leave(BlockActivations& a, const at::Tensor& inner) const {
  at::Tensor output = tensor_parallel_.reduce(output_layer_.forward(inner));
  if (output_norm_) {
    kernels::NormResult norm = output_norm_->forward(output, {});
    a.output = std::exchange(output, norm.normed);
    a.output_statistics = norm.statistics;
  }
  return scaled(output);
}

at::Tensor Block::scaled(const at::Tensor& x) const {
  return residual_multiplier_ == 1 ? x : kernels::multiply(x, residual_multiplier_);
}

at::Tensor Block::backward(const at::Tensor& dy, const at::Tensor& residual_gradient, BlockActivations& a,
                           const LayerContext& context, WeightGradients& weight_gradients) const {
  if (!a.projected.defined()) {
    project(a);
    forward_inner(a, context);
  }
  at::Tensor output_gradient = scaled(dy);
  if (output_norm_) {
    output_gradient = output_norm_->backward(output_gradient, a.output, a.output_statistics, {}, weight_gradients);
  }
  a.output.reset();
  at::Tensor all_dy = tensor_parallel_.gather(output_gradient);
  output_gradient.reset();
  const at::Tensor projected_gradient = backward_inner(std::move(all_dy), a, context, weight_gradients);
  a.projected.reset();
  const at::Tensor gradient = input_layers_backward(projected_gradient, a, weight_gradients);
  if (!input_norm_) return kernels::add(gradient, residual_gradient);
  return input_norm_->backward(gradient, a.input, a.statistics, residual_gradient, weight_gradients);
}

at::Tensor Block::input_layers_backward(const at::Tensor& dy, BlockActivations& a,
                                        WeightGradients& weight_gradients) const {
  PendingRows gathered =
      a.all_normed.defined() ? PendingRows(std::exchange(a.all_normed, {})) : tensor_parallel_.start_gather(a.normed);
  PendingRows sum = tensor_parallel_.start_reduce(kernels::linear_input_gradient(dy, input_layers_.weight));
  weight_gradients.add(input_layers_.weight_gradient, input_layers_.bias_gradient, dy, gathered.wait());
  return sum.wait();
}

std::unique_ptr<Block> make_block(const ParameterStore& parameters, int64_t layer, BlockKind kind,
                                  const TensorParallel& tensor_parallel) {
  const BlockDescription block = describe_block(parameters.model(), kind);
  switch (kind) {
    case BlockKind::attention:
      return std::make_unique<AttentionBlock>(parameters, layer, block, tensor_parallel);
    case BlockKind::feed_forward:
      return std::make_unique<FeedForwardBlock>(parameters, layer, block, tensor_parallel);
  }
  fail_check("known block", __FILE__, __LINE__, "");
}

}  // namespace copus
