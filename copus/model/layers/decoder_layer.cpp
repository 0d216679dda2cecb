#include "copus/model/layers/decoder_layer.h"

#include <algorithm>
#include <utility>

#include "copus/base/error.h"

namespace copus {
namespace {

std::string layer_prefix(int64_t layer) { return concat("model.layers.", layer, "."); }

Linear join_linear(const ParameterStore& parameters, const std::string& prefix, const std::vector<std::string>& names,
                   bool bias) {
  std::vector<std::string> weights, biases;
  for (const std::string& name : names) {
    weights.push_back(prefix + name + ".weight");
    biases.push_back(prefix + name + ".bias");
  }
  const JoinedParameters weight = parameters.join(weights);
  Linear linear{weight.weight, weight.gradient, {}, {}};
  if (bias) {
    const JoinedParameters joined = parameters.join(biases);
    linear.bias = joined.weight;
    linear.bias_gradient = joined.gradient;
  }
  return linear;
}

std::vector<std::string> feed_forward_inputs(const ModelDescription& model) {
  if (model.gated_feed_forward) return {"gate_proj", "up_proj"};
  return {"up_proj"};
}

// Joins a row-parallel layer. The ranks sum its outputs, so only the first rank adds the bias. Each rank sees the whole
// gradient of the bias.
Linear row_parallel_linear(const ParameterStore& parameters, const std::string& prefix, const char* name, bool bias,
                           const TensorParallel& tensor_parallel) {
  Linear linear = join_linear(parameters, prefix, {name}, bias);
  if (tensor_parallel.rank() > 0) linear.bias.reset();
  return linear;
}

}  // namespace

BlockNorms::BlockNorms(const ParameterStore& parameters, const std::string& prefix, const BlockNormNames& names) {
  if (names.input != nullptr) input.emplace(parameters, prefix + names.input);
  if (names.output != nullptr) output.emplace(parameters, prefix + names.output);
}

at::Tensor BlockNorms::output_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& statistics,
                                       WeightGradients& weight_gradients) const {
  return output ? output->backward(dy, x, statistics, {}, weight_gradients) : dy;
}

at::Tensor BlockNorms::input_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& statistics,
                                      const at::Tensor& residual_gradient, WeightGradients& weight_gradients) const {
  if (!input) return kernels::add(dy, residual_gradient);
  return input->backward(dy, x, statistics, residual_gradient, weight_gradients);
}

at::Tensor Linear::backward(const at::Tensor& dy, const at::Tensor& x, WeightGradients& weight_gradients) const {
  at::Tensor dx = kernels::linear_input_gradient(dy, weight);
  weight_gradients.add(weight_gradient, bias_gradient, dy, x);
  return dx;
}

DecoderLayer::DecoderLayer(const ParameterStore& parameters, int64_t layer, const TensorParallel& tensor_parallel)
    : tensor_parallel_(tensor_parallel),
      has_rope_(parameters.model().has_rope(layer)),
      activation_{parameters.model().activation, parameters.model().gated_feed_forward},
      residual_multiplier_(parameters.model().residual_multiplier),
      parallel_residual_(parameters.model().parallel_residual),
      attention_norms_(parameters, layer_prefix(layer), describe_block(parameters.model(), BlockKind::attention).norms),
      feed_forward_norms_(parameters, layer_prefix(layer),
                          describe_block(parameters.model(), BlockKind::feed_forward).norms),
      query_key_norm_(parameters, layer_prefix(layer) + "self_attn.", tensor_parallel),
      query_key_value_(join_linear(parameters, layer_prefix(layer) + "self_attn.", {"q_proj", "k_proj", "v_proj"},
                                   parameters.model().qkv_bias)),
      attention_output_(row_parallel_linear(parameters, layer_prefix(layer) + "self_attn.", "o_proj",
                                            parameters.model().attention_output_bias, tensor_parallel)),
      gate_up_(join_linear(parameters, layer_prefix(layer) + "mlp.", feed_forward_inputs(parameters.model()),
                           parameters.model().feed_forward_bias)),
      down_(row_parallel_linear(parameters, layer_prefix(layer) + "mlp.", "down_proj",
                                parameters.model().feed_forward_bias, tensor_parallel)) {}

void DecoderLayer::enter(LayerActivations& a, const ResidualStream& in) const {
  if (!attention_norms_.input) {
    a.input = a.attention_input = in.sum();
    return;
  }
  kernels::NormResult norm = attention_norms_.input->forward(in.residual, in.delta);
  a.input = norm.sum;
  a.attention_statistics = norm.statistics;
  a.attention_input = norm.normed;
}

at::Tensor DecoderLayer::project_query_key_value(LayerActivations& a, const kernels::AttentionShape& shape,
                                                 const RotaryTable::Rows& rotary) const {
  a.all_attention_input = tensor_parallel_.gather(a.attention_input);
  a.qkv = query_key_value_.forward(a.all_attention_input);
  a.qkv_statistics = query_key_norm_.statistics(a.qkv, shape);
  return normalize_and_rotate(a, shape, rotary);
}

at::Tensor DecoderLayer::normalize_and_rotate(const LayerActivations& a, const kernels::AttentionShape& shape,
                                              const RotaryTable::Rows& rotary) const {
  at::Tensor heads = query_key_norm_.forward(a.qkv, shape, a.qkv_statistics);
  if (has_rope_) kernels::rotary_(heads, shape, rotary.cosine, rotary.sine, /*backward=*/false);
  return heads;
}

at::Tensor DecoderLayer::scaled(const at::Tensor& x) const {
  return residual_multiplier_ == 1 ? x : kernels::multiply(x, residual_multiplier_);
}

void DecoderLayer::project_gate_up(LayerActivations& a, const at::Tensor& attended) const {
  at::Tensor output = tensor_parallel_.reduce(attention_output_.forward(attended));
  if (attention_norms_.output) {
    kernels::NormResult norm = attention_norms_.output->forward(output, {});
    a.attention_output = std::exchange(output, norm.normed);
    a.attention_output_statistics = norm.statistics;
  }
  output = scaled(output);
  // The feed-forward's input norm also computes the sum a.middle. Without this norm, or with parallel blocks, it is
  // computed here.
  const bool is_summed = parallel_residual_ || !feed_forward_norms_.input;
  if (is_summed) a.middle = kernels::add(a.input, output);
  if (!feed_forward_norms_.input) {
    a.feed_forward_input = parallel_residual_ ? a.input : a.middle;
  } else {
    kernels::NormResult norm = feed_forward_norms_.input->forward(a.input, is_summed ? at::Tensor() : output);
    if (!is_summed) a.middle = norm.sum;
    a.feed_forward_statistics = norm.statistics;
    a.feed_forward_input = norm.normed;
  }
  a.all_feed_forward_input = tensor_parallel_.gather(a.feed_forward_input);
  a.gate_up = gate_up_.forward(a.all_feed_forward_input);
}

at::Tensor DecoderLayer::project_down(LayerActivations& a, const at::Tensor& activation) const {
  at::Tensor output = tensor_parallel_.reduce(down_.forward(activation));
  if (!feed_forward_norms_.output) return scaled(output);
  kernels::NormResult norm = feed_forward_norms_.output->forward(output, {});
  a.feed_forward_output = std::move(output);
  a.feed_forward_output_statistics = norm.statistics;
  return scaled(norm.normed);
}

ResidualStream DecoderLayer::feed_forward(LayerActivations& a, const at::Tensor& attended) const {
  project_gate_up(a, attended);
  a.all_feed_forward_input.reset();
  return {a.middle, project_down(a, kernels::activate(a.gate_up, activation_))};
}

ResidualStream DecoderLayer::forward(const ResidualStream& in, const kernels::AttentionShape& shape,
                                     const RotaryTable::Rows& rotary, Recompute recompute,
                                     LayerActivations* kept) const {
  LayerActivations a;
  enter(a, in);
  at::Tensor heads = project_query_key_value(a, shape, rotary);
  a.all_attention_input.reset();
  a.attention = kernels::attention(heads, shape);
  heads.reset();
  ResidualStream out = feed_forward(a, a.attention.output);
  if (kept) {
    if (parallel_residual_) a.middle.reset();
    switch (recompute) {
      case Recompute::none:
        break;
      case Recompute::attention:
        a.qkv.reset();
        a.qkv_statistics.reset();
        a.attention = {};
        break;
      case Recompute::full: {
        at::Tensor input = a.input;
        a = {};
        a.input = std::move(input);
        break;
      }
    }
    *kept = std::move(a);
  }
  return out;
}

at::Tensor DecoderLayer::column_backward(const Linear& linear, const at::Tensor& dy, const at::Tensor& x,
                                         at::Tensor all_x, WeightGradients& weight_gradients) const {
  PendingRows gathered = all_x.defined() ? PendingRows(std::move(all_x)) : tensor_parallel_.start_gather(x);
  PendingRows sum = tensor_parallel_.start_reduce(kernels::linear_input_gradient(dy, linear.weight));
  weight_gradients.add(linear.weight_gradient, linear.bias_gradient, dy, gathered.wait());
  return sum.wait();
}

at::Tensor DecoderLayer::backward(const at::Tensor& dy, LayerActivations kept, const kernels::AttentionShape& shape,
                                  const RotaryTable::Rows& rotary, WeightGradients& weight_gradients) const {
  LayerActivations& a = kept;
  const bool recomputes_all = !a.attention_input.defined();
  if (recomputes_all) enter(a, {a.input, {}});
  if (!a.qkv.defined()) a.attention = kernels::attention(project_query_key_value(a, shape, rotary), shape);
  if (recomputes_all) {
    project_gate_up(a, a.attention.output);
    if (feed_forward_norms_.output) project_down(a, kernels::activate(a.gate_up, activation_));
  }

  at::Tensor all_dy = tensor_parallel_.gather(feed_forward_norms_.output_backward(
      scaled(dy), a.feed_forward_output, a.feed_forward_output_statistics, weight_gradients));
  a.feed_forward_output.reset();
  at::Tensor activation_gradient = kernels::linear_input_gradient(all_dy, down_.weight);
  kernels::ActivationGradient activation = kernels::activate_backward(activation_gradient, a.gate_up, activation_);
  activation_gradient.reset();
  a.gate_up.reset();
  weight_gradients.add(down_.weight_gradient, down_.bias_gradient, all_dy, activation.activation);
  all_dy.reset();
  activation.activation.reset();
  at::Tensor input_gradient = column_backward(gate_up_, activation.input, a.feed_forward_input,
                                              std::exchange(a.all_feed_forward_input, {}), weight_gradients);
  activation = {};
  // The gradient of the sum after attention. With parallel blocks it is the gradient of the layer's input without the
  // path through attention.
  const at::Tensor stream_gradient = feed_forward_norms_.input_backward(
      input_gradient, parallel_residual_ ? a.input : a.middle, a.feed_forward_statistics, dy, weight_gradients);

  at::Tensor all_middle_gradient = tensor_parallel_.gather(
      attention_norms_.output_backward(scaled(parallel_residual_ ? dy : stream_gradient), a.attention_output,
                                       a.attention_output_statistics, weight_gradients));
  a.attention_output.reset();
  at::Tensor attention_gradient = attention_output_.backward(all_middle_gradient, a.attention.output, weight_gradients);
  all_middle_gradient.reset();
  at::Tensor qkv_gradient = kernels::attention_backward(
      attention_gradient, query_key_norm_.is_there() ? normalize_and_rotate(a, shape, rotary) : a.qkv, a.attention,
      shape);
  attention_gradient.reset();
  a.attention = {};
  if (has_rope_) kernels::rotary_(qkv_gradient, shape, rotary.cosine, rotary.sine, /*backward=*/true);
  query_key_norm_.backward_(qkv_gradient, a.qkv, shape, a.qkv_statistics, weight_gradients);
  a.qkv.reset();
  input_gradient = column_backward(query_key_value_, qkv_gradient, a.attention_input,
                                   std::exchange(a.all_attention_input, {}), weight_gradients);
  return attention_norms_.input_backward(input_gradient, a.input, a.attention_statistics, stream_gradient,
                                         weight_gradients);
}

ResidualStream DecoderLayer::forward_cached(const ResidualStream& in, const kernels::AttentionShape& shape,
                                            const RotaryTable::Rows& rotary, const at::Tensor& keys,
                                            const at::Tensor& values) const {
  LayerActivations a;
  enter(a, in);
  const at::Tensor heads = project_query_key_value(a, shape, rotary)
                               .view({shape.batch, shape.sequence, shape.heads + 2 * shape.kv_heads, shape.head_dim})
                               .transpose(1, 2);
  const int64_t first = keys.size(2) - shape.sequence;
  keys.narrow(2, first, shape.sequence).copy_(heads.narrow(1, shape.heads, shape.kv_heads));
  values.narrow(2, first, shape.sequence).copy_(heads.narrow(1, shape.heads + shape.kv_heads, shape.kv_heads));
  const at::Tensor attended = kernels::cached_attention(heads.narrow(1, 0, shape.heads), keys, values, shape);
  return feed_forward(a, attended.view({shape.batch * shape.sequence, shape.heads * shape.head_dim}));
}

kernels::AttentionShape local_attention_shape(const ModelDescription& model, int64_t layer,
                                              const TensorParallel& tensor_parallel, const at::Tensor& tokens) {
  COPUS_CHECK(tokens.dim() == 2 && tokens.scalar_type() == at::kLong, "tokens are int64 [batch, sequence]");
  const int64_t ranks = tensor_parallel.size();
  COPUS_CHECK(!tensor_parallel.sequence_parallel() || tokens.numel() % ranks == 0, tokens.numel(),
              " rows cannot be cut over ", ranks, " ranks");
  return {.batch = tokens.size(0),
          .sequence = tokens.size(1),
          .heads = model.num_heads / ranks,
          .kv_heads = std::max<int64_t>(1, model.num_kv_heads / ranks),
          .head_dim = model.head_dim,
          .window = model.window_of(layer),
          .multiplier = model.attention_multiplier,
          .softcap = model.attention_softcap};
}

}  // namespace copus
