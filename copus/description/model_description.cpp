#include "copus/description/model_description.h"

#include <cmath>
#include <functional>
#include <numeric>

#include "copus/base/error.h"
#include "copus/description/layer_blocks.h"

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

int64_t ParameterInfo::num_elements() const {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

std::vector<ParameterInfo> list_parameters(const ModelDescription& model) {
  const int64_t hidden = model.hidden_size;
  const ParameterSplit vocabulary{.units = model.vocab_size};

  std::vector<ParameterInfo> parameters;
  parameters.push_back({token_embedding_name, {model.vocab_size, hidden}, ParameterKind::embedding, -1, vocabulary});
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
    const auto add_linear = [&](const BlockDescription& block, const BlockLinear& linear, const ParameterSplit& split,
                                const ParameterSplit& of_bias) {
      const std::string name = concat(prefix, block.modules, linear.module);
      parameters.push_back({name + ".weight", {linear.outputs, linear.inputs}, ParameterKind::linear, layer, split});
      if (linear.has_bias)
        parameters.push_back({name + ".bias", {linear.outputs}, ParameterKind::bias, layer, of_bias});
    };
    const std::vector<BlockDescription> blocks = describe_layer(model, layer);
    for (const BlockDescription& block : blocks) {
      for (const BlockLinear& linear : block.inputs) {
        const ParameterSplit split{.units = linear.units.count, .input = block.modules};
        add_linear(block, linear, split, split);
      }
      // Ranks sum their partial results and then add the whole bias, so the bias is not split.
      const size_t weight = parameters.size();
      add_linear(block, block.output, {.dimension = 1, .units = block.output.units.count}, {});
      parameters[weight].adds_to_stream = true;
      for (const HeadNorm& norm : block.head_norms) {
        parameters.push_back({concat(prefix, block.modules, norm.module, ".weight"),
                              {norm.width},
                              ParameterKind::norm,
                              layer,
                              {.units = norm.units.count, .by_head = true}});
      }
    }
    for (const BlockDescription& block : blocks) {
      for (const char* name : {block.norms.input, block.norms.output}) {
        if (name != nullptr) add_stream_norm(prefix + name, layer);
      }
    }
  }
  add_stream_norm("model.norm", -1);
  if (!model.tie_word_embeddings) {
    parameters.push_back({"lm_head.weight", {model.vocab_size, hidden}, ParameterKind::linear, -1, vocabulary});
  }
  return parameters;
}

int64_t count_parameters(const ModelDescription& model) {
  int64_t total = 0;
  for (const ParameterInfo& parameter : list_parameters(model)) total += parameter.num_elements();
  return total;
}

double initial_deviation(const ModelDescription& model, const ParameterInfo& parameter) {
  if (!model.scales_residual_initializer || !parameter.adds_to_stream) return model.initializer_range;
  size_t blocks = 0;  // number of blocks that add to the residual stream
  for (int64_t layer = 0; layer < model.num_layers; ++layer) blocks += blocks_of(model, layer).size();
  return model.initializer_range / std::sqrt(static_cast<double>(blocks));
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
  // Multiplications of a token's activations with weights; each costs 2 operations forward and 4 backward.
  double weights = static_cast<double>(model.vocab_size * model.hidden_size), scores = 0;
  for (int64_t layer = 0; layer < model.num_layers; ++layer) {
    for (const BlockDescription& block : describe_layer(model, layer)) {
      weights += static_cast<double>(block.num_weights());
      scores += static_cast<double>(24 * block.score_width);
    }
  }
  return 6 * weights + scores * attended_tokens(model, sequence_length);
}

}  // namespace copus
