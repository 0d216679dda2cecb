#include "copus/description/model_description.h"

#include <cmath>
#include <functional>
#include <numeric>

#include "copus/base/error.h"

namespace copus {

std::string_view causal_language_model_class(Architecture architecture) {
  switch (architecture) {
    case Architecture::llama:
      return "LlamaForCausalLM";
    case Architecture::qwen2:
      return "Qwen2ForCausalLM";
    case Architecture::mistral:
      return "MistralForCausalLM";
    case Architecture::qwen3:
      return "Qwen3ForCausalLM";
    case Architecture::smollm3:
      return "SmolLM3ForCausalLM";
    case Architecture::olmo2:
      return "Olmo2ForCausalLM";
    case Architecture::gpt2:
      return "GPT2LMHeadModel";
    case Architecture::olmo3:
      return "Olmo3ForCausalLM";
    case Architecture::granite:
      return "GraniteForCausalLM";
    case Architecture::phi3:
      return "Phi3ForCausalLM";
    case Architecture::gemma3_text:
      return "Gemma3ForCausalLM";
    case Architecture::gemma2:
      return "Gemma2ForCausalLM";
    case Architecture::gpt_neox:
      return "GPTNeoXForCausalLM";
    case Architecture::copus:
      return "CopusForCausalLM";
  }
  fail_check("known architecture", __FILE__, __LINE__, "");
}

std::vector<std::pair<std::string_view, double>> scaling_numbers(const RopeScaling& scaling) {
  std::vector<std::pair<std::string_view, double>> numbers = {{"factor", scaling.factor}};
  if (!scaling.has_original_context()) return numbers;
  const bool is_yarn = scaling.type == RopeType::yarn, is_llama3 = scaling.type == RopeType::llama3;
  if (is_yarn || is_llama3) {
    numbers.emplace_back(is_yarn ? "beta_slow" : "low_freq_factor", scaling.low_frequency_factor);
    numbers.emplace_back(is_yarn ? "beta_fast" : "high_freq_factor", scaling.high_frequency_factor);
  }
  numbers.emplace_back("original_max_position_embeddings",
                       static_cast<double>(scaling.original_max_position_embeddings));
  if (!is_llama3) numbers.emplace_back("attention_factor", scaling.attention_factor);
  return numbers;
}

std::vector<std::pair<std::string_view, std::vector<double>>> scaling_lists(const RopeScaling& scaling) {
  if (scaling.type != RopeType::longrope) return {};
  return {{"short_factor", scaling.short_factor}, {"long_factor", scaling.long_factor}};
}

BlockNormNames attention_norm_names(BlockNorm norm) {
  return {norm == BlockNorm::output ? nullptr : "input_layernorm",
          norm == BlockNorm::input ? nullptr : "post_attention_layernorm"};
}

BlockNormNames feed_forward_norm_names(BlockNorm norm) {
  return {norm == BlockNorm::output  ? nullptr
          : norm == BlockNorm::input ? "post_attention_layernorm"
                                     : "pre_feedforward_layernorm",
          norm == BlockNorm::input ? nullptr : "post_feedforward_layernorm"};
}

int64_t ParameterInfo::num_elements() const {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

std::vector<ParameterInfo> list_parameters(const ModelDescription& model) {
  const int64_t hidden = model.hidden_size;
  const int64_t query = model.num_heads * model.head_dim;
  const int64_t key_value = model.num_kv_heads * model.head_dim;

  std::vector<ParameterInfo> parameters;
  parameters.push_back({token_embedding_name, {model.vocab_size, hidden}, ParameterKind::embedding, -1});
  if (model.learned_positions) {
    parameters.push_back(
        {"model.embed_positions.weight", {model.max_position_embeddings, hidden}, ParameterKind::embedding, -1});
  }
  const auto add_stream_norm = [&](const std::string& name, int64_t layer) {
    parameters.push_back({concat(name, ".weight"), {hidden}, ParameterKind::norm, layer});
    if (model.norm == NormKind::rms) return;
    parameters.push_back({concat(name, ".bias"), {hidden}, ParameterKind::norm_bias, layer});
  };
  for (int64_t layer = 0; layer < model.num_layers; ++layer) {
    const std::string prefix = concat("model.layers.", layer, ".");
    const auto add_norm = [&](const char* name, int64_t width) {
      parameters.push_back({concat(prefix, name, ".weight"), {width}, ParameterKind::norm, layer});
    };
    const auto add_linear = [&](const char* name, int64_t out, int64_t in, bool with_bias) {
      parameters.push_back({concat(prefix, name, ".weight"), {out, in}, ParameterKind::linear, layer});
      if (with_bias) parameters.push_back({concat(prefix, name, ".bias"), {out}, ParameterKind::bias, layer});
    };
    add_linear("self_attn.q_proj", query, hidden, model.qkv_bias);
    add_linear("self_attn.k_proj", key_value, hidden, model.qkv_bias);
    add_linear("self_attn.v_proj", key_value, hidden, model.qkv_bias);
    add_linear("self_attn.o_proj", hidden, query, model.attention_output_bias);
    if (model.qk_norm != QkNorm::none) {
      const bool by_head = model.qk_norm == QkNorm::head;
      add_norm("self_attn.q_norm", by_head ? model.head_dim : query);
      add_norm("self_attn.k_norm", by_head ? model.head_dim : key_value);
    }
    if (model.gated_feed_forward) add_linear("mlp.gate_proj", model.intermediate_size, hidden, model.feed_forward_bias);
    add_linear("mlp.up_proj", model.intermediate_size, hidden, model.feed_forward_bias);
    add_linear("mlp.down_proj", hidden, model.intermediate_size, model.feed_forward_bias);
    for (const auto& [input, output] :
         {attention_norm_names(model.block_norm), feed_forward_norm_names(model.block_norm)}) {
      for (const char* name : {input, output}) {
        if (name != nullptr) add_stream_norm(prefix + name, layer);
      }
    }
  }
  add_stream_norm("model.norm", -1);
  if (!model.tie_word_embeddings) {
    parameters.push_back({"lm_head.weight", {model.vocab_size, hidden}, ParameterKind::linear, -1});
  }
  return parameters;
}

int64_t count_parameters(const ModelDescription& model) {
  int64_t total = 0;
  for (const ParameterInfo& parameter : list_parameters(model)) total += parameter.num_elements();
  return total;
}

double initial_deviation(const ModelDescription& model, const ParameterInfo& parameter) {
  const bool leads_back = parameter.name.ends_with("o_proj.weight") || parameter.name.ends_with("down_proj.weight");
  if (!model.scales_residual_initializer || !leads_back) return model.initializer_range;
  return model.initializer_range / std::sqrt(2.0 * static_cast<double>(model.num_layers));
}

double attended_tokens(const ModelDescription& model, int64_t sequence_length) {
  const auto sequence = static_cast<double>(sequence_length);
  if (!model.has_window(sequence_length)) return sequence / 2;
  const auto window = static_cast<double>(model.attention_window);
  const double within = window - window * window / (2 * sequence);
  if (model.full_attention_interval == 0) return within;
  const int64_t full_layers = model.num_layers / model.full_attention_interval;
  return within + (sequence / 2 - within) * static_cast<double>(full_layers) / static_cast<double>(model.num_layers);
}

double training_flops_per_token(const ModelDescription& model, int64_t sequence_length) {
  const double hidden = static_cast<double>(model.hidden_size);
  const double query = static_cast<double>(model.num_heads * model.head_dim);
  const double key_value = static_cast<double>(model.num_kv_heads * model.head_dim);
  const double layers = static_cast<double>(model.num_layers);
  // Multiplications of one token with weights: each costs 2 operations forward and 4 backward.
  const double layer_weights =
      2 * hidden * query + 2 * hidden * key_value +
      static_cast<double>((model.feed_forward_inputs() + 1) * model.intermediate_size) * hidden;
  const double head_weights = static_cast<double>(model.vocab_size) * hidden;
  const double attention = 24 * layers * query * attended_tokens(model, sequence_length);
  return 6 * (layers * layer_weights + head_weights) + attention;
}

}  // namespace copus
