// A model apart from its weights: the shape of a decoder-only language model, as in Hugging Face's config.json, and the
// resulting list of parameters.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "copus/base/named_values.h"

namespace copus {

// The target of a position that carries no loss (PyTorch's ignore_index).
inline constexpr int64_t ignored_target = -100;

// The names are those of config.json's `model_type`.
enum class Architecture {
  llama,
  qwen2,
  mistral,
  qwen3,
  smollm3,
  olmo2,
  gpt2,
  olmo3,
  granite,
  phi3,
  gemma3_text,
  gemma2,
  gpt_neox,
  copus,  // ours: all parts combine freely, and no class of transformers reads it
};
template <>
inline constexpr auto named_values<Architecture> =
    std::to_array<NamedValue<Architecture>>({{Architecture::llama, "llama"},
                                             {Architecture::qwen2, "qwen2"},
                                             {Architecture::mistral, "mistral"},
                                             {Architecture::qwen3, "qwen3"},
                                             {Architecture::smollm3, "smollm3"},
                                             {Architecture::olmo2, "olmo2"},
                                             {Architecture::gpt2, "gpt2"},
                                             {Architecture::olmo3, "olmo3"},
                                             {Architecture::granite, "granite"},
                                             {Architecture::phi3, "phi3"},
                                             {Architecture::gemma3_text, "gemma3_text"},
                                             {Architecture::gemma2, "gemma2"},
                                             {Architecture::gpt_neox, "gpt_neox"},
                                             {Architecture::copus, "copus"}});

// The value in config.json's `architectures`: "LlamaForCausalLM".
std::string_view causal_language_model_class(Architecture architecture);

// Lists the architectures whose models have a field of config.json; the others ignore it. Empty: all have it.
std::vector<Architecture> architectures_with(std::string_view field);
// Returns the value of such a field that has no effect.
double value_without(std::string_view field);

// How the frequencies of rotary embeddings are rescaled for long contexts. The names are those of `rope_type`.
enum class RopeType {
  llama3,  // Llama 3.1: between the two bounds, the fraction that a frequency keeps is linear in its turns
  linear,  // all frequencies are divided by the factor (Chen et al. 2023)
  yarn,    // between the two bounds, the fraction is linear in the index of the frequency (Peng et al. 2023)
  // The base grows with sequences beyond max_position_embeddings, of which no run has any: nothing is rescaled.
  dynamic,
  longrope,  // each frequency is divided by a factor of its own (Ding et al. 2024)
};
template <>
inline constexpr auto named_values<RopeType> = std::to_array<NamedValue<RopeType>>({{RopeType::llama3, "llama3"},
                                                                                    {RopeType::linear, "linear"},
                                                                                    {RopeType::yarn, "yarn"},
                                                                                    {RopeType::dynamic, "dynamic"},
                                                                                    {RopeType::longrope, "longrope"}});

struct RopeScaling {
  RopeType type = RopeType::llama3;
  double factor = 8.0;
  // Bounds of turns within the original context. Frequencies with fewer turns than the first bound are divided by the
  // factor; frequencies with more turns than the second bound are kept. Only for Llama 3 and YaRN. Linear and dynamic
  // scaling ignore the context too.
  double low_frequency_factor = 1.0;
  double high_frequency_factor = 4.0;
  int64_t original_max_position_embeddings = 8192;
  double attention_factor = 1.0;  // multiplies cosines and sines; only for YaRN and LongRoPE
  // LongRoPE's factors of the frequencies, for sequences within the original context and for longer ones.
  std::vector<double> short_factor = {}, long_factor = {};
  bool has_original_context() const { return type != RopeType::linear && type != RopeType::dynamic; }
  bool operator==(const RopeScaling&) const = default;
};

// Lists the numbers of a scaling under transformers' names. Integers are exact.
std::vector<std::pair<std::string_view, double>> scaling_numbers(const RopeScaling& scaling);
// Lists the numbers of which a scaling has one for each pair of elements that rotates.
std::vector<std::pair<std::string_view, std::vector<double>>> scaling_lists(const RopeScaling& scaling);

// What the RMSNorms of queries and keys average over. They precede the rotation.
enum class QkNorm {
  none,        // no such norms
  head,        // each head separately: one weight [head_dim] serves all query heads of a layer, another all key heads
  projection,  // all query heads of a token together, and all its key heads: one weight for each element of a
               // projection
};
template <>
inline constexpr auto named_values<QkNorm> = std::to_array<NamedValue<QkNorm>>(
    {{QkNorm::none, "none"}, {QkNorm::head, "head"}, {QkNorm::projection, "projection"}});

// The norms of the residual stream. Norms of queries and keys are always RMSNorms.
enum class NormKind {
  rms,    // x / rms(x) * weight (Zhang & Sennrich 2019)
  layer,  // (x - mean(x)) / std(x) * weight + bias (Ba et al. 2016)
};
template <>
inline constexpr auto named_values<NormKind> =
    std::to_array<NamedValue<NormKind>>({{NormKind::rms, "rms"}, {NormKind::layer, "layer"}});

// Position of the norms of attention and of the feed-forward: x + block(norm(x)), x + norm(block(x)), or both.
enum class BlockNorm { input, output, both };
template <>
inline constexpr auto named_values<BlockNorm> = std::to_array<NamedValue<BlockNorm>>(
    {{BlockNorm::input, "input"}, {BlockNorm::output, "output"}, {BlockNorm::both, "both"}});

// The activation function of the feed-forward: SiLU, or GELU, in its tanh approximation or exact (Hendrycks & Gimpel
// 2016).
enum class ActivationFunction { silu, gelu_tanh, gelu };
template <>
inline constexpr auto named_values<ActivationFunction> =
    std::to_array<NamedValue<ActivationFunction>>({{ActivationFunction::silu, "silu"},
                                                   {ActivationFunction::gelu_tanh, "gelu_pytorch_tanh"},
                                                   {ActivationFunction::gelu, "gelu"}});

// The factor of attention's scores, given a multiplier or, as 0, none.
inline double score_scale(double multiplier, int64_t head_dim) {
  return multiplier > 0 ? multiplier : 1 / std::sqrt(static_cast<double>(head_dim));
}

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
  NormKind norm = NormKind::rms;
  double rms_norm_eps = 1e-6;  // for norms of either kind
  // The model adds the embedding of a token's position, from a table of max_position_embeddings rows, to the embedding
  // of the token. No layer rotates.
  bool learned_positions = false;
  double rope_theta = 10000.0;
  std::optional<RopeScaling> rope_scaling = {};
  double partial_rotary_factor = 1;  // the fraction of each head that rotates: its first elements
  // The base of the rotary embeddings in sliding layers, to which rope_scaling does not apply. 0: as in other layers.
  double sliding_rope_theta = 0;
  bool tie_word_embeddings = false;
  bool qkv_bias = false;
  bool attention_output_bias = false;
  ActivationFunction activation = ActivationFunction::silu;
  // The feed-forward multiplies the activation of one projection (gate) by another (up); otherwise it has only `up`.
  bool gated_feed_forward = true;
  bool feed_forward_bias = false;  // in all of its linear layers
  QkNorm qk_norm = QkNorm::none;
  BlockNorm block_norm = BlockNorm::input;
  // Feed-forward and attention read the same stream, and both results are added to it. Otherwise the feed-forward reads
  // the stream after attention.
  bool parallel_residual = false;
  bool norms_add_one = false;  // all norms multiply by 1 + weight, and weights begin at 0
  // Every n-th layer has no rotary embeddings: layers n - 1, 2 n - 1, ... (Yang et al. 2025, "RoPE to NoPE and back
  // again"). 0: all layers have them.
  int64_t no_rope_interval = 0;
  double initializer_range = 0.02;
  // The initial standard deviation of layers that lead back to the residual stream is divided by sqrt(2 num_layers),
  // the square root of their number (Radford et al. 2019).
  bool scales_residual_initializer = false;

  // In sliding layers a token attends to itself and to the attention_window - 1 tokens before it. 0: to all tokens
  // before it.
  int64_t attention_window = 0;
  // Every n-th layer attends to all tokens: layers n - 1, 2 n - 1, ... The others are sliding. 0: all are sliding.
  int64_t full_attention_interval = 0;

  double embedding_multiplier = 1;           // multiplies a token's embedding
  bool rounds_embedding_multiplier = false;  // to the compute dtype, as if it were a weight
  double residual_multiplier = 1;            // multiplies what attention and feed-forward add to the stream
  double attention_multiplier = 0;           // multiplies the scores; 0: 1 / sqrt(head_dim)
  double logits_scaling = 1;                 // divides the logits
  // Soft-caps: scaled scores s of attention become c tanh(s / c), and so do logits (Gemma Team 2024). 0: there is none.
  double attention_softcap = 0, logits_softcap = 0;

  bool has_output_norms() const { return block_norm != BlockNorm::input; }
  double score_scale() const { return copus::score_scale(attention_multiplier, head_dim); }
  bool has_window(int64_t sequence_length) const {
    return attention_window > 0 && attention_window < sequence_length && full_attention_interval != 1;
  }
  bool is_sliding(int64_t layer) const {
    return full_attention_interval == 0 || (layer + 1) % full_attention_interval != 0;
  }
  int64_t window_of(int64_t layer) const { return is_sliding(layer) ? attention_window : 0; }
  bool has_sliding_rope(int64_t layer) const { return sliding_rope_theta > 0 && is_sliding(layer); }
  bool has_rope(int64_t layer) const {
    return !learned_positions && (no_rope_interval == 0 || (layer + 1) % no_rope_interval != 0);
  }
  int64_t rotary_dim() const { return static_cast<int64_t>(static_cast<double>(head_dim) * partial_rotary_factor); }
  bool operator==(const ModelDescription&) const = default;
};

// Calls visit(name, values...) for every size that decides the model's matrices, with its name in config.json and its
// value in each of the models `of`.
template <class Visitor, class... Models>
void visit_sizes(Visitor&& visit, Models&... of) {
  visit("vocab_size", of.vocab_size...);
  visit("hidden_size", of.hidden_size...);
  visit("intermediate_size", of.intermediate_size...);
  visit("num_hidden_layers", of.num_layers...);
  visit("num_attention_heads", of.num_heads...);
  visit("num_key_value_heads", of.num_kv_heads...);
  visit("head_dim", of.head_dim...);
}

// How a parameter is initialised, and whether weight decay applies to it.
enum class ParameterKind { embedding, linear, bias, norm, norm_bias };

// The embedding table of tokens, which a tied head shares.
inline constexpr const char* token_embedding_name = "model.embed_tokens.weight";

// How tensor-parallel ranks share a parameter.
struct ParameterSplit {
  int64_t dimension = 0;  // the sharded one
  // The number of heads, rows or columns in the dimension, which is the largest number of parts. 0: never sharded.
  int64_t units = 0;
  // Linear layers of a layer with the same name here read the same input: their weights are stored back to back, and so
  // are their biases.
  std::string_view input = {};
  // Each rank uses the parameter only on its own heads, so its gradients differ between tensor-parallel ranks.
  bool by_head = false;

  // Returns the number of parts on `ranks` tensor-parallel ranks. Each part is on ranks / parts neighbouring ranks.
  int64_t parts(int64_t ranks) const { return units == 0 ? 1 : std::min(ranks, units); }
};

// One entry of the canonical, layout-free list of parameters. Names and shapes are Hugging Face's: a linear layer's
// weight is [out, in].
struct ParameterInfo {
  std::string name;
  std::vector<int64_t> shape;
  ParameterKind kind;
  int64_t layer;  // decoder layer, or -1 for embedding, final norm and head
  ParameterSplit split = {};
  bool adds_to_stream = false;  // the weight of a layer whose result is added to the residual stream

  int64_t num_elements() const;
};

// Finds the dropout with which transformers would train a config.json's model: `"resid_pdrop" is 0.1`, or "" if there
// is none. Copus trains without dropout. `source`: the file's name for messages. Throws UserError if the text is not a
// JSON object.
std::string dropout_in(std::string_view json_text, const std::string& source);

// Reads a Hugging Face config.json in the style of transformers 4 (rope_theta, rope_scaling) or 5 (rope_parameters).
// Absent fields have the same meaning as for transformers. `source` names the file in messages. Throws UserError for
// other architectures, for fields that are missing, out of range or contradictory, and for unsupported features (layer
// patterns other than one full-attention layer in every n, other rope types).
ModelDescription parse_model_description(std::string_view json_text, const std::string& source);

// Writes a config.json that transformers 4 and 5 read back into the same model. `torch_dtype` is the dtype of the
// weights in the same folder ("float32", "bfloat16"). Token ids (bos, eos, pad) are null, since they belong to the
// tokenizer.
std::string to_hugging_face_config(const ModelDescription& model, std::string_view torch_dtype);

// The initial weight of a norm.
inline double initial_norm_weight(const ModelDescription& model) { return model.norms_add_one ? 0 : 1; }

// Returns all parameters in canonical order, the order of transformers' named_parameters() for Llama: embeddings,
// layers 0 to L-1 (in each layer the linear layers and the norms of queries and keys of each block, then the blocks'
// other norms), final norm, and the head unless it is tied to the embedding.
std::vector<ParameterInfo> list_parameters(const ModelDescription& model);

int64_t count_parameters(const ModelDescription& model);

// The standard deviation of the initial weights of an embedding or a linear layer.
double initial_deviation(const ModelDescription& model, const ParameterInfo& parameter);

// Returns the number of tokens to which a token of a sequence attends, averaged over the layers, without terms of order
// 1. It is s / 2, or w - w^2 / (2 s) with a window w of less than s tokens.
double attended_tokens(const ModelDescription& model, int64_t sequence_length);

// Returns the floating-point operations for training on one token, forward and backward, without recompute: 6 for each
// weight of the linear layers of blocks (layer_blocks.h) and of the head, and 24 h_q a for each attention, where h_q is
// the width of its queries and `a` is the number of other tokens to which a token attends on average (attended_tokens).
// Attention counts in full, not only its causal half, so a = s / 2 without a window. The head counts once, and the
// look-up of embeddings not at all. This is the convention of Narayanan et al. 2021, extended to grouped-query
// attention and windows.
double training_flops_per_token(const ModelDescription& model, int64_t sequence_length);

}  // namespace copus
