#include "copus/model/testing/reference_decoder.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/tensor.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "copus/description/layer_blocks.h"
#include "copus/model/layers/rotary_table.h"

namespace copus::reference {

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon) {
  return x * at::rsqrt(x.pow(2).mean(-1, true) + epsilon) * weight;
}

at::Tensor layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double epsilon) {
  return rms_norm(x - x.mean(-1, true), weight, epsilon) + bias;
}

at::Tensor rotate(const at::Tensor& x, const at::Tensor& cosine, const at::Tensor& sine) {
  const int64_t half = cosine.size(-1);
  const at::Tensor first = x.narrow(-1, 0, half), second = x.narrow(-1, half, half);
  const at::Tensor rest = x.narrow(-1, 2 * half, x.size(-1) - 2 * half);
  return at::cat({first * cosine - second * sine, second * cosine + first * sine, rest}, -1);
}

at::Tensor attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, int64_t window,
                     double multiplier, double softcap) {
  const int64_t shared = query.size(1) / key.size(1), sequence = query.size(2);
  at::Tensor scores = at::matmul(query, key.repeat_interleave(shared, 1).transpose(2, 3)) *
                      (multiplier > 0 ? multiplier : 1 / std::sqrt(static_cast<double>(query.size(3))));
  if (softcap > 0) scores = softcap * at::tanh(scores / softcap);
  const at::Tensor all = at::ones({sequence, sequence}, query.options().dtype(at::kBool));
  const at::Tensor hidden_keys = window == 0 ? all.triu(1) : all.triu(1).logical_or(all.tril(-window));
  return at::matmul(at::softmax(scores.masked_fill(hidden_keys, -INFINITY), -1), value.repeat_interleave(shared, 1));
}

std::map<std::string, at::Tensor> leaves(const ParameterStore& store) {
  std::map<std::string, at::Tensor> weights;
  for (const Parameter& parameter : store.parameters()) {
    if (parameter.tied_copy) continue;
    weights[parameter.info.name] = store.master(parameter).detach().clone().set_requires_grad(true);
  }
  return weights;
}

at::Tensor logits(const ModelDescription& model, const std::map<std::string, at::Tensor>& weights,
                  const at::Tensor& tokens) {
  const at::TensorOptions options = weights.at("model.norm.weight").options().requires_grad(false);
  at::Tensor x = at::embedding(weights.at("model.embed_tokens.weight"), tokens) * model.embedding_multiplier;
  if (model.learned_positions) x = x + weights.at("model.embed_positions.weight").narrow(0, 0, tokens.size(1));
  const double one = model.norms_add_one ? 1 : 0;
  const auto stream_norm = [&](const at::Tensor& y, const std::string& name) {
    return model.norm == NormKind::rms
               ? rms_norm(y, one + weights.at(name + ".weight"), model.rms_norm_eps)
               : layer_norm(y, one + weights.at(name + ".weight"), weights.at(name + ".bias"), model.rms_norm_eps);
  };
  for (int64_t layer = 0; layer < model.num_layers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    const auto weight = [&](const std::string& name) { return weights.at(prefix + name); };
    const Rotation rotation = rotation_of(model, layer, tokens.size(1));
    std::vector<double> angles;
    for (int64_t position = 0; position < tokens.size(1); ++position) {
      for (const float frequency : rotation.frequencies) angles.push_back(static_cast<float>(position) * frequency);
    }
    const at::Tensor angle = at::tensor(angles, at::kDouble).view({tokens.size(1), -1});
    const at::Tensor cosine = (rotation.factor * angle.cos()).to(options);
    const at::Tensor sine = (rotation.factor * angle.sin()).to(options);
    const BlockNormNames attention_norms = describe_block(model, BlockKind::attention).norms;
    const BlockNormNames feed_forward_norms = describe_block(model, BlockKind::feed_forward).norms;
    const auto normed = [&](const at::Tensor& y, const char* name) {
      return name == nullptr ? y : stream_norm(y, prefix + name);
    };
    const auto norm = [&](const at::Tensor& y, const std::string& name) {
      return rms_norm(y, one + weight(name + ".weight"), model.rms_norm_eps);
    };
    const auto with_bias = [&](const at::Tensor& y, const std::string& name, bool bias) {
      return bias ? y + weight(name + ".bias") : y;
    };
    const at::Tensor attention_input = normed(x, attention_norms.input);
    const auto heads = [&](const std::string& name, int64_t count) {
      at::Tensor y = at::matmul(attention_input, weight("self_attn." + name + ".weight").t());
      y = with_bias(y, "self_attn." + name, model.qkv_bias);
      if (model.qk_norm == QkNorm::projection && name != "v_proj")
        y = norm(y, "self_attn." + name.substr(0, 1) + "_norm");
      return y.view({tokens.size(0), tokens.size(1), count, model.head_dim}).transpose(1, 2);
    };
    const auto compared = [&](const std::string& name, int64_t count) {
      at::Tensor y = heads(name + "_proj", count);
      if (model.qk_norm == QkNorm::head) y = norm(y, "self_attn." + name + "_norm");
      return model.has_rope(layer) ? rotate(y, cosine, sine) : y;
    };
    const at::Tensor attended = attention(compared("q", model.num_heads), compared("k", model.num_kv_heads),
                                          heads("v_proj", model.num_kv_heads), model.window_of(layer),
                                          model.attention_multiplier, model.attention_softcap);
    const at::Tensor attention_output =
        with_bias(at::matmul(attended.transpose(1, 2).flatten(2), weight("self_attn.o_proj.weight").t()),
                  "self_attn.o_proj", model.attention_output_bias);
    const at::Tensor before = x;
    x = x + normed(attention_output, attention_norms.output) * model.residual_multiplier;
    const at::Tensor y = normed(model.parallel_residual ? before : x, feed_forward_norms.input);
    const auto feed_forward = [&](const at::Tensor& input, const std::string& name) {
      return with_bias(at::matmul(input, weight("mlp." + name + ".weight").t()), "mlp." + name,
                       model.feed_forward_bias);
    };
    const auto activate = [&](const at::Tensor& input) {
      return model.activation == ActivationFunction::silu   ? at::silu(input)
             : model.activation == ActivationFunction::gelu ? at::gelu(input)
                                                            : at::gelu(input, "tanh");
    };
    const at::Tensor up = feed_forward(y, "up_proj");
    const at::Tensor output = feed_forward(
        model.gated_feed_forward ? activate(feed_forward(y, "gate_proj")) * up : activate(up), "down_proj");
    x = x + normed(output, feed_forward_norms.output) * model.residual_multiplier;
  }
  x = stream_norm(x, "model.norm");
  const at::Tensor head = weights.at(model.tie_word_embeddings ? "model.embed_tokens.weight" : "lm_head.weight");
  const at::Tensor logits = at::matmul(x, head.t()) / model.logits_scaling;
  return model.logits_softcap > 0 ? model.logits_softcap * at::tanh(logits / model.logits_softcap) : logits;
}

at::Tensor loss(const at::Tensor& logits, const at::Tensor& targets) {
  return at::cross_entropy_loss(logits.flatten(0, 1), targets.flatten(), {}, at::Reduction::Sum, ignored_target);
}

std::vector<at::Tensor> gradients(const at::Tensor& scalar, const std::vector<at::Tensor>& inputs,
                                  const at::Tensor& output_gradient) {
  std::vector<at::Tensor> outputs_gradient;
  if (output_gradient.defined()) outputs_gradient.push_back(output_gradient);
  return torch::autograd::grad({scalar}, inputs, outputs_gradient);
}

double relative_error(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor wide = b.to(at::kDouble);
  const double size = wide.norm().item<double>();
  return (a.to(at::kDouble) - wide).norm().item<double>() / (size > 0 ? size : 1.0);
}

}  // namespace copus::reference
