// What a model is, apart from its weights: the shape of a decoder-only language model, as Hugging Face's config.json
// describes it, and the list of parameters that follows from it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "copus/base/named_values.h"

namespace copus {

// The target of a position that carries no loss (PyTorch's ignore_index).
inline constexpr int64_t ignored_target = -100;

// The names are those of config.json's `model_type`.
enum class Architecture { llama, qwen2, mistral };
template <>
inline constexpr auto named_values<Architecture> = std::to_array<NamedValue<Architecture>>(
    {{Architecture::llama, "llama"}, {Architecture::qwen2, "qwen2"}, {Architecture::mistral, "mistral"}});

// What config.json's `architectures` lists: "LlamaForCausalLM".
std::string_view causal_language_model_class(Architecture architecture);

// How Llama 3.1 rescales the frequencies of rotary embeddings for long contexts: rope_type "llama3".
struct Llama3RopeScaling {
  double factor = 8.0;
  double low_frequency_factor = 1.0;
  double high_frequency_factor = 4.0;
  int64_t original_max_position_embeddings = 8192;
  bool operator==(const Llama3RopeScaling&) const = default;
};

struct ModelDescription {
  Architecture architecture = Architecture::llama;
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_layers = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t max_position_embeddings = 2048;
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000.0;
  std::optional<Llama3RopeScaling> rope_scaling;
  bool tie_word_embeddings = false;
  bool qkv_bias = false;
  double initializer_range = 0.02;

  bool operator==(const ModelDescription&) const = default;
};

// How a parameter starts and whether weight decay applies to it.
enum class ParameterKind { embedding, linear, bias, norm };

// One entry of the canonical, layout-free list of parameters. Names and shapes are Hugging Face's: a linear layer's
// weight is [out, in].
struct ParameterInfo {
  std::string name;
  std::vector<int64_t> shape;
  ParameterKind kind;
  int64_t layer;  // decoder layer, or -1 for embedding, final norm and head

  int64_t num_elements() const;
};

// Reads a Hugging Face config.json in the style of transformers 4 (rope_theta, rope_scaling) or 5 (rope_parameters).
// Absent fields mean what they mean to transformers. `source` names the file in messages. Throws UserError for other
// architectures, for fields that are missing, out of range or contradict each other, and for features that are not
// supported (sliding window, other rope types).
ModelDescription parse_model_description(std::string_view json_text, const std::string& source);

// The config.json that transformers 4 and 5 read back into the same model. `torch_dtype` is the dtype of the weights
// beside it ("float32", "bfloat16"). Token ids (bos, eos, pad) are written as null: they belong to the tokenizer.
std::string to_hugging_face_config(const ModelDescription& model, std::string_view torch_dtype);

// All parameters in canonical order, which is that of transformers' named_parameters(): embedding, layers 0 to L-1 (in
// each attention, feed-forward and the two norms), final norm, and the head unless it is tied to the embedding.
std::vector<ParameterInfo> list_parameters(const ModelDescription& model);

int64_t count_parameters(const ModelDescription& model);

// Floating-point operations that training one token needs, forward and backward, without recompute:
//   6 (L (2 h h_q + 2 h h_kv + 3 h f) + V h) + 12 L h_q s.
// Attention counts in full, not its causal half; the head counts once and the embedding's look-up not at all. This is
// the convention of Narayanan et al. 2021, extended to grouped-query attention.
double training_flops_per_token(const ModelDescription& model, int64_t sequence_length);

}  // namespace copus
