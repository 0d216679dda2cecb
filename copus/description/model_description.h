// A model without its weights: the shape of a decoder-only language model, as in Hugging Face's config.json, and the
// list of its parameters.
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

// The architectures, with the names of config.json's `model_type`.
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
  copus,  // ours: all properties combine freely; no class of transformers reads it
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

// Returns the value of config.json's `architectures`: "LlamaForCausalLM".
std::string_view causal_language_model_class(Architecture architecture);

// Lists the architectures that have a field of config.json. Other architectures ignore it. Empty: all have it.
std::vector<Architecture> architectures_with(std::string_view field);
// Returns the value with which such a field has no effect.
double value_without(std::string_view field);

// How rotary frequencies are rescaled for long contexts, with the names of `rope_type`.
enum class RopeType {
  llama3,  // Llama 3.1: between the bounds, the kept fraction of a frequency is linear in its number of turns
  linear,  // all frequencies are divided by the factor (Chen et al. 2023)
  yarn,    // between the bounds, the kept fraction is linear in the frequency's index (Peng et al. 2023)
  // The base grows only for sequences longer than max_position_embeddings. No run has any, so nothing is rescaled.
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
  // Bounds on the number of turns that a frequency makes within the original context. A frequency with fewer turns than
  // the first bound is divided by the factor, and a frequency with more turns than the second bound is kept. Only Llama
  // 3 and YaRN use these bounds and the original context.
  double low_frequency_factor = 1.0;
  double high_frequency_factor = 4.0;
  int64_t original_max_position_embeddings = 8192;
  double attention_factor = 1.0;  // factor on cosines and sines; only for YaRN and LongRoPE
  // LongRoPE's divisors of the frequencies, for sequences up to the original context and for longer ones.
  std::vector<double> short_factor = {}, long_factor = {};
  bool has_original_context() const { return type != RopeType::linear && type != RopeType::dynamic; }
  bool operator==(const RopeScaling&) const = default;
};

// Lists a scaling's numbers under transformers' names. Integers are exact.
std::vector<std::pair<std::string_view, double>> scaling_numbers(const RopeScaling& scaling);
// Lists a scaling's lists of one number per rotating pair of elements.
std::vector<std::pair<std::string_view, std::vector<double>>> scaling_lists(const RopeScaling& scaling);

// The RMSNorms of queries and keys before the rotation, and what they average over.
enum class QkNorm {
  none,        // no norms
  head,        // each head separately: one weight [head_dim] for all query heads of a layer, and one for all key heads
  projection,  // all query heads of a token together, and all its key heads: one weight for each element of a
               // projection
};
template <>
inline constexpr auto named_values<QkNorm> = std::to_array<NamedValue<QkNorm>>(
    {{QkNorm::none, "none"}, {QkNorm::head, "head"}, {QkNorm::projection, "projection"}});

// The norms of the residual stream. Queries and keys always have RMSNorms.
enum class NormKind {
  rms,    // x / rms(x) * weight (Zhang & Sennrich 2019)
  layer,  // (x - mean(x)) / std(x) * weight + bias (Ba et al. 2016)
};
template <>
inline constexpr auto named_values<NormKind> =
    std::to_array<NamedValue<NormKind>>({{NormKind::rms, "rms"}, {NormKind::layer, "layer"}});

// Where a block's norm is: x + block(norm(x)), x + norm(block(x)), or both.
enum class BlockNorm { input, output, both };
template <>
inline constexpr auto named_values<BlockNorm> = std::to_array<NamedValue<BlockNorm>>(
    {{BlockNorm::input, "input"}, {BlockNorm::output, "output"}, {BlockNorm::both, "both"}});

// The feed-forward's activation: SiLU, or GELU by its tanh approximation or exact (Hendrycks & Gimpel 2016).
enum class ActivationFunction { silu, gelu_tanh, gelu };
template <>
inline constexpr auto named_values<ActivationFunction> =
    std::to_array<NamedValue<ActivationFunction>>({{ActivationFunction::silu, "silu"},
                                                   {ActivationFunction::gelu_tanh, "gelu_pytorch_tanh"},
                                                   {ActivationFunction::gelu, "gelu"}});

// Returns the factor on attention scores: the multiplier or, if that is 0, 1 / sqrt(head_dim).
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
  double rms_norm_eps = 1e-6;  // epsilon of all norms, including LayerNorms
  // Whether positions have embeddings, from a table of max_position_embeddings rows, which are added to the embeddings
  // of tokens. There are no rotary embeddings then.
  bool learned_positions = false;
  double rope_theta = 10000.0;
  std::optional<RopeScaling> rope_scaling = {};
  double partial_rotary_factor = 1;  // the fraction of each head that rotates, from its first element on
  // The rotary base of sliding layers, which rope_scaling does not change. 0: that of the other layers.
  double sliding_rope_theta = 0;
  bool tie_word_embeddings = false;
  bool qkv_bias = false;
  bool attention_output_bias = false;
  ActivationFunction activation = ActivationFunction::silu;
  // Whether the feed-forward multiplies the activation of one projection (gate) by another (up). Otherwise it has only
  // `up`.
  bool gated_feed_forward = true;
  bool feed_forward_bias = false;  // whether all its linear layers have biases
  QkNorm qk_norm = QkNorm::none;
  BlockNorm block_norm = BlockNorm::input;
  // Whether attention and feed-forward both read the layer's input, and both results are added to it. Otherwise the
  // feed-forward reads the residual stream after attention.
  bool parallel_residual = false;
  bool norms_add_one = false;  // whether norms multiply by 1 + weight; weights then start at 0
  // Every n-th layer (n - 1, 2 n - 1, ...) has no rotary embeddings (Yang et al. 2025, "RoPE to NoPE and back again").
  // 0: all layers have them.
  int64_t no_rope_interval = 0;
  double initializer_range = 0.02;
  // Whether the initial standard deviation of layers that write to the residual stream is divided by sqrt(2
  // num_layers), where 2 num_layers is the number of these layers (Radford et al. 2019).
  bool scales_residual_initializer = false;

  // In sliding layers a token attends to itself and to the attention_window - 1 tokens before it. 0: there is no
  // window.
  int64_t attention_window = 0;
  // Every n-th layer (n - 1, 2 n - 1, ...) attends to all earlier tokens; the others are sliding. 0: all are sliding.
  int64_t full_attention_interval = 0;

  double embedding_multiplier = 1;           // factor on a token's embedding
  bool rounds_embedding_multiplier = false;  // to the compute dtype, as a weight would be
  double residual_multiplier = 1;            // factor on the results that attention and feed-forward add to the stream
  double attention_multiplier = 0;           // factor on the scores; 0: 1 / sqrt(head_dim)
  double logits_scaling = 1;                 // divisor of the logits
  // Soft-caps c (Gemma Team 2024): a scaled attention score s becomes c tanh(s / c); the same for logits. 0: none.
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

// The kind of a parameter, which decides its initial values and whether it has weight decay.
enum class ParameterKind { embedding, linear, bias, norm, norm_bias };

// The token embedding, which is also the head's weight if the head is tied.
inline constexpr const char* token_embedding_name = "model.embed_tokens.weight";

// How a parameter is split over tensor-parallel ranks.
struct ParameterSplit {
  int64_t dimension = 0;  // the dimension that is split
  // The number of heads, rows or columns in this dimension: at most this many parts. 0: never split.
  int64_t units = 0;
  // Linear layers of a decoder layer read the same input if this name is equal and not empty. Their weights are stored
  // back to back, and so are their biases.
  std::string_view input = {};
  // Whether the parameter is replicated, but each tensor-parallel rank applies it only to its own heads. Its gradients
  // then differ between tensor-parallel ranks.
  bool by_head = false;

  // Returns the number of parts on `ranks` tensor-parallel ranks. ranks / parts neighbouring ranks hold the same part.
  int64_t parts(int64_t ranks) const { return units == 0 ? 1 : std::min(ranks, units); }
};

// One unsharded parameter of the model, the same in every layout. Names and shapes are Hugging Face's: a linear layer's
// weight is [out, in].
struct ParameterInfo {
  std::string name;
  std::vector<int64_t> shape;
  ParameterKind kind;
  int64_t layer;  // index of the decoder layer; -1 for embedding, final norm and head
  ParameterSplit split = {};
  bool adds_to_stream = false;  // the weight of a layer whose result is added to the residual stream

  int64_t num_elements() const;
};

// Describes the dropout with which transformers would train a config.json's model: `"resid_pdrop" is 0.1`; empty if
// there is none. Copus trains without dropout. `source` names the file in messages. Throws UserError if the text is not
// a JSON object.
std::string dropout_in(std::string_view json_text, const std::string& source);

// Parses a Hugging Face config.json in the style of transformers 4 (rope_theta, rope_scaling) or 5 (rope_parameters).
// Absent fields mean the same as in transformers. `source` names the file in messages. Throws UserError for other
// architectures, for fields that are missing, out of range or contradictory, and for unsupported features (layer
// patterns other than one full-attention layer in every n, other rope types).
ModelDescription parse_model_description(std::string_view json_text, const std::string& source);

// Writes a config.json that transformers 4 and 5 read as the same model. `torch_dtype` is the dtype of the weights in
// the same folder ("float32", "bfloat16"). Token ids (bos, eos, pad) are null, because they depend on the tokenizer.
std::string to_hugging_face_config(const ModelDescription& model, std::string_view torch_dtype);

inline double initial_norm_weight(const ModelDescription& model) { return model.norms_add_one ? 0 : 1; }

// Returns all parameters in the order of transformers' named_parameters() for Llama: embeddings, layers 0 to L-1, final
// norm, and the head unless it is tied to the embedding. A layer has, for each block, the linear layers and the norms
// of queries and keys; the blocks' other norms follow.
std::vector<ParameterInfo> list_parameters(const ModelDescription& model);

int64_t count_parameters(const ModelDescription& model);

// Returns the standard deviation of an embedding's or linear layer's initial weights.
double initial_deviation(const ModelDescription& model, const ParameterInfo& parameter);

// Returns the number of tokens to which a token attends, averaged over tokens and layers, up to terms of order 1. This
// is s / 2, or w - w^2 / (2 s) with a window of w < s tokens.
double attended_tokens(const ModelDescription& model, int64_t sequence_length);

// Returns the floating-point operations of training on one token, forward and backward, without recompute. These are 6
// for each weight of the blocks' linear layers (layer_blocks.h) and of the head, and 24 h_q a for each attention. h_q
// is the width of its queries, a is attended_tokens. Attention is counted for the whole square of scores and not for
// its causal half, and without a window a = s / 2. The head is counted once, the look-up of embeddings not at all. This
// extends the convention of Narayanan et al. 2021 to grouped-query attention and windows.
double training_flops_per_token(const ModelDescription& model, int64_t sequence_length);

}  // namespace copus
