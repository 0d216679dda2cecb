// Small config.json files of every architecture, for tests that change their fields.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "copus/base/testing/test_support.h"
#include "copus/description/model_description.h"

namespace copus::config_texts {

using Json = nlohmann::json;
inline const Json llama_config = Json::parse(R"({
  "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 256, "hidden_size": 64,
  "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4
})");

inline Json with(Json config, const Json& changes) {
  config.update(changes);
  return config;
}

inline Json as(const char* class_name, const char* type) {
  return with(llama_config, {{"architectures", {class_name}}, {"model_type", type}, {"num_key_value_heads", 2}});
}
inline const Json qwen2_config = as("Qwen2ForCausalLM", "qwen2");
inline const Json qwen3_config = as("Qwen3ForCausalLM", "qwen3");
inline const Json smollm3_config = as("SmolLM3ForCausalLM", "smollm3");
inline const Json olmo2_config = as("Olmo2ForCausalLM", "olmo2");
inline const Json olmo3_config = with(as("Olmo3ForCausalLM", "olmo3"), {{"num_hidden_layers", 4}});
inline const Json granite_config = as("GraniteForCausalLM", "granite");
inline const Json phi3_config = as("Phi3ForCausalLM", "phi3");
inline const Json gemma3_config = with(as("Gemma3ForCausalLM", "gemma3_text"), {{"num_hidden_layers", 7}});
inline const Json gemma2_config = with(as("Gemma2ForCausalLM", "gemma2"), {{"num_hidden_layers", 4}});
inline const Json gpt_neox_config = with(as("GPTNeoXForCausalLM", "gpt_neox"), {{"num_key_value_heads", nullptr}});
inline const Json gpt2_config = Json::parse(R"({
  "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "vocab_size": 256, "n_embd": 64, "n_layer": 2, "n_head": 4,
  "n_positions": 512
})");
// Long and short factors for heads of 16 elements.
inline const Json longrope = {{"type", "longrope"},
                              {"short_factor", {1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7}},
                              {"long_factor", {1, 2, 3, 4, 8, 12, 16, 24.5}}};
inline const Json mistral_config = with(as("MistralForCausalLM", "mistral"), {{"sliding_window", nullptr}});

inline ModelDescription description_of(const Json& config) {
  return parse_model_description(config.dump(), "config.json");
}

inline std::string message_of_text(const std::string& text) {
  return user_error([&] { parse_model_description(text, "config.json"); });
}
inline std::string message_of(const Json& config) { return message_of_text(config.dump()); }

}  // namespace copus::config_texts
