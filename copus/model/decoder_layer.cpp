#include "copus/model/decoder_layer.h"

#include <algorithm>

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

}  // namespace

at::Tensor Linear::backward(const at::Tensor& dy, const at::Tensor& x, WeightGradients& weight_gradients) const {
  at::Tensor dx = kernels::linear_input_gradient(dy, weight);
  weight_gradients.add(weight_gradient, bias_gradient, dy, x);
  return dx;
}

DecoderLayer::DecoderLayer(const ParameterStore& parameters, int64_t layer, const TensorParallel& tensor_parallel)
    : tensor_parallel_(tensor_parallel),
      epsilon_(parameters.model().rms_norm_eps),
      has_rope_(parameters.model().has_rope(layer)),
      attention_norm_(parameters.find(layer_prefix(layer) + "input_layernorm.weight")),
      feed_forward_norm_(parameters.find(layer_prefix(layer) + "post_attention_layernorm.weight")),
      query_key_value_(join_linear(parameters, layer_prefix(layer) + "self_attn.", {"q_proj", "k_proj", "v_proj"},
                                   parameters.model().qkv_bias)),
      attention_output_(join_linear(parameters, layer_prefix(layer) + "self_attn.", {"o_proj"}, false)),
      gate_up_(join_linear(parameters, layer_prefix(layer) + "mlp.", {"gate_proj", "up_proj"}, false)),
      down_(join_linear(parameters, layer_prefix(layer) + "mlp.", {"down_proj"}, false)) {
  if (!parameters.model().qk_norm) return;
  query_norm_ = &parameters.find(layer_prefix(layer) + "self_attn.q_norm.weight");
  key_norm_ = &parameters.find(layer_prefix(layer) + "self_attn.k_norm.weight");
}

at::Tensor DecoderLayer::project_query_key_value(LayerActivations& a, const kernels::AttentionShape& shape,
                                                 const RotaryTable::Rows& rotary) const {
  a.all_attention_input = tensor_parallel_.gather(a.attention_input);
  a.qkv = query_key_value_.forward(a.all_attention_input);
  return normalize_and_rotate(a.qkv, shape, rotary);
}

at::Tensor DecoderLayer::normalize_and_rotate(const at::Tensor& qkv, const kernels::AttentionShape& shape,
                                              const RotaryTable::Rows& rotary) const {
  at::Tensor heads = qkv;
  if (query_norm_) heads = kernels::normalize_heads(qkv, shape, query_norm_->weight, key_norm_->weight, epsilon_);
  if (has_rope_) kernels::rotary_(heads, shape, rotary.cosine, rotary.sine, /*backward=*/false);
  return heads;
}

void DecoderLayer::project_gate_up(LayerActivations& a, const at::Tensor& attention_output) const {
  const at::Tensor delta = tensor_parallel_.reduce(attention_output_.forward(attention_output));
  kernels::NormResult norm = kernels::add_rms_norm(a.input, delta, feed_forward_norm_.weight, epsilon_);
  a.middle = norm.sum;
  a.feed_forward_rstd = norm.rstd;
  a.feed_forward_input = norm.normed;
  a.all_feed_forward_input = tensor_parallel_.gather(a.feed_forward_input);
  a.gate_up = gate_up_.forward(a.all_feed_forward_input);
}

ResidualStream DecoderLayer::feed_forward(LayerActivations& a, const at::Tensor& attention_output) const {
  project_gate_up(a, attention_output);
  a.all_feed_forward_input.reset();
  return {a.middle, tensor_parallel_.reduce(down_.forward(kernels::swiglu(a.gate_up)))};
}

ResidualStream DecoderLayer::forward(const ResidualStream& in, const kernels::AttentionShape& shape,
                                     const RotaryTable::Rows& rotary, Recompute recompute,
                                     LayerActivations* kept) const {
  LayerActivations a;
  kernels::NormResult norm = kernels::add_rms_norm(in.residual, in.delta, attention_norm_.weight, epsilon_);
  a.input = norm.sum;
  a.attention_rstd = norm.rstd;
  a.attention_input = norm.normed;
  at::Tensor heads = project_query_key_value(a, shape, rotary);
  a.all_attention_input.reset();
  a.attention = kernels::attention(heads, shape);
  heads.reset();
  ResidualStream out = feed_forward(a, a.attention.output);
  if (kept) {
    switch (recompute) {
      case Recompute::none:
        break;
      case Recompute::attention:
        a.qkv.reset();
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
  if (!a.attention_input.defined()) {  // Recompute::full has not kept it
    kernels::NormResult norm = kernels::add_rms_norm(a.input, {}, attention_norm_.weight, epsilon_);
    a.attention_rstd = norm.rstd;
    a.attention_input = norm.normed;
  }
  if (!a.qkv.defined()) a.attention = kernels::attention(project_query_key_value(a, shape, rotary), shape);
  if (!a.gate_up.defined()) project_gate_up(a, a.attention.output);

  at::Tensor all_dy = tensor_parallel_.gather(dy);
  at::Tensor activation_gradient = kernels::linear_input_gradient(all_dy, down_.weight);
  kernels::SwigluGradient swiglu = kernels::swiglu_backward(activation_gradient, a.gate_up);
  activation_gradient.reset();
  a.gate_up.reset();
  weight_gradients.add(down_.weight_gradient, {}, all_dy, swiglu.activation);
  all_dy.reset();
  swiglu.activation.reset();
  at::Tensor norm_gradient = column_backward(gate_up_, swiglu.gate_up, a.feed_forward_input,
                                             std::exchange(a.all_feed_forward_input, {}), weight_gradients);
  swiglu = {};
  const at::Tensor middle_gradient =
      kernels::rms_norm_backward(norm_gradient, a.middle, a.feed_forward_rstd, feed_forward_norm_.weight, dy,
                                 weight_gradients.add_norm(feed_forward_norm_.gradient));

  at::Tensor attention_gradient =
      attention_output_.backward(tensor_parallel_.gather(middle_gradient), a.attention.output, weight_gradients);
  at::Tensor qkv_gradient = kernels::attention_backward(
      attention_gradient, query_norm_ ? normalize_and_rotate(a.qkv, shape, rotary) : a.qkv, a.attention, shape);
  attention_gradient.reset();
  a.attention = {};
  if (has_rope_) kernels::rotary_(qkv_gradient, shape, rotary.cosine, rotary.sine, /*backward=*/true);
  if (query_norm_) {
    kernels::normalize_heads_backward_(qkv_gradient, a.qkv, shape, query_norm_->weight, key_norm_->weight, epsilon_,
                                       weight_gradients.add_norm(query_norm_->gradient),
                                       weight_gradients.add_norm(key_norm_->gradient));
  }
  a.qkv.reset();
  norm_gradient = column_backward(query_key_value_, qkv_gradient, a.attention_input,
                                  std::exchange(a.all_attention_input, {}), weight_gradients);
  return kernels::rms_norm_backward(norm_gradient, a.input, a.attention_rstd, attention_norm_.weight, middle_gradient,
                                    weight_gradients.add_norm(attention_norm_.gradient));
}

ResidualStream DecoderLayer::forward_cached(const ResidualStream& in, const kernels::AttentionShape& shape,
                                            const RotaryTable::Rows& rotary, const at::Tensor& keys,
                                            const at::Tensor& values) const {
  LayerActivations a;
  kernels::NormResult norm = kernels::add_rms_norm(in.residual, in.delta, attention_norm_.weight, epsilon_);
  a.input = norm.sum;
  a.attention_input = norm.normed;
  const at::Tensor heads = project_query_key_value(a, shape, rotary)
                               .view({shape.batch, shape.sequence, shape.heads + 2 * shape.kv_heads, shape.head_dim})
                               .transpose(1, 2);
  const int64_t first = keys.size(2) - shape.sequence;
  keys.narrow(2, first, shape.sequence).copy_(heads.narrow(1, shape.heads, shape.kv_heads));
  values.narrow(2, first, shape.sequence).copy_(heads.narrow(1, shape.heads + shape.kv_heads, shape.kv_heads));
  const at::Tensor attended = kernels::cached_attention(heads.narrow(1, 0, shape.heads), keys, values, shape.window);
  return feed_forward(a, attended.view({shape.batch * shape.sequence, shape.heads * shape.head_dim}));
}

kernels::AttentionShape local_attention_shape(const ModelDescription& model, const TensorParallel& tensor_parallel,
                                              const at::Tensor& tokens) {
  COPUS_CHECK(tokens.dim() == 2 && tokens.scalar_type() == at::kLong, "tokens are int64 [batch, sequence]");
  const int64_t ranks = tensor_parallel.size();
  COPUS_CHECK(!tensor_parallel.sequence_parallel() || tokens.numel() % ranks == 0, tokens.numel(),
              " rows cannot be cut over ", ranks, " ranks");
  return {.batch = tokens.size(0),
          .sequence = tokens.size(1),
          .heads = model.num_heads / ranks,
          .kv_heads = std::max<int64_t>(1, model.num_kv_heads / ranks),
          .head_dim = model.head_dim,
          .window = model.attention_window};
}

}  // namespace copus
