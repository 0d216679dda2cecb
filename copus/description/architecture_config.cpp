#include "copus/description/architecture_config.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "copus/base/error.h"
#include "copus/base/text/text_distance.h"

namespace copus {

namespace {

using Json = nlohmann::json;

constexpr double gpt2_dropout = 0.1;
constexpr int64_t default_query_scalar = 256;

// GPT-2's names of fields; transformers also accepts the common names.
constexpr FieldAlias gpt2_aliases[] = {{"n_embd", "hidden_size"},
                                       {"n_layer", "num_hidden_layers"},
                                       {"n_head", "num_attention_heads"},
                                       {"n_inner", "intermediate_size"},
                                       {"n_positions", "max_position_embeddings"},
                                       {"activation_function", "hidden_act"},
                                       {"layer_norm_epsilon", "rms_norm_eps"}};

// GPT-NeoX's names of fields.
constexpr FieldAlias gpt_neox_aliases[] = {
    {"layer_norm_eps", "rms_norm_eps"}, {"rotary_pct", "partial_rotary_factor"}, {"rotary_emb_base", "rope_theta"}};

Json window_or_null(const ModelDescription& model) {
  return model.attention_window > 0 ? Json(model.attention_window) : Json(nullptr);
}

void read_qwen(const Fields& config, ModelDescription&) {
  if (config.boolean("use_sliding_window")) {
    config.fail("\"use_sliding_window\" is true, but sliding windows in only some layers are not supported");
  }
}

void write_qwen(const ModelDescription&, Json& config) { config["use_sliding_window"] = false; }

void write_mistral(const ModelDescription& model, Json& config) { config["sliding_window"] = window_or_null(model); }

// Reads which layers have rotary embeddings: from a list of 1 (rotary) and 0 (none), or from an interval. Only lists
// that correspond to an interval are supported, as published models have them.
void read_smollm3(const Fields& config, ModelDescription& model) {
  read_qwen(config, model);
  model.no_rope_interval =
      config.integer("no_rope_layer_interval", max_layers, /*lowest=*/0).value_or(model.no_rope_interval);
  if (model.no_rope_interval > model.num_layers) model.no_rope_interval = 0;  // it excludes no layer
  const Json* list = config.find("no_rope_layers");
  if (!list) return;
  const auto is_switch = [](const Json& entry) { return entry == 0 || entry == 1; };
  if (!list->is_array() || std::ssize(*list) < model.num_layers ||
      !std::all_of(list->begin(), list->end(), is_switch)) {
    config.fail("\"no_rope_layers\" must list a 1 (rotary embeddings) or a 0 (none) for each of the ", model.num_layers,
                " layers, got ", describe(*list));
  }
  const auto first = std::find(list->begin(), list->end(), 0) - list->begin();
  model.no_rope_interval = first < model.num_layers ? first + 1 : 0;
  for (int64_t layer = 0; layer < model.num_layers; ++layer) {
    if (model.has_rope(layer) == ((*list)[layer] == 1)) continue;
    config.fail("\"no_rope_layers\" must be 0 in every n-th layer alone; other lists are not supported: entry ", layer,
                " breaks the interval of ", model.no_rope_interval);
  }
}

void write_smollm3(const ModelDescription& model, Json& config) {
  write_qwen(model, config);
  config["no_rope_layers"] = Json::array();
  for (int64_t layer = 0; layer < model.num_layers; ++layer) {
    config["no_rope_layers"].push_back(model.has_rope(layer) ? 1 : 0);
  }
}

// Checks that attention has one key/value head per query head and is as wide as the residual stream.
void check_multi_head_attention(const Fields& config, const ModelDescription& model) {
  if (model.num_kv_heads == model.num_heads && model.num_heads * model.head_dim == model.hidden_size) return;
  config.fail("a model of ", to_string(model.architecture),
              " has as many key/value heads as heads, which together are as wide as \"", config.key("hidden_size"),
              "\" (", model.hidden_size, "), got ", model.num_kv_heads, " and ", model.num_heads, " heads of ",
              model.head_dim);
}

void read_gpt2(const Fields& config, ModelDescription& model) {
  model.qkv_bias = model.attention_output_bias = model.feed_forward_bias = true;  // whatever the fields say
  if (!config.find("intermediate_size")) model.intermediate_size = 4 * model.hidden_size;
  check_multi_head_attention(config, model);
  for (const char* name : {"rope_scaling", "rope_parameters"}) {
    if (config.find(name)) config.fail("\"", name, "\": a model of gpt2 learns positions, and rotates nothing");
  }
  if (!config.boolean("scale_attn_weights", true)) {
    config.fail("\"scale_attn_weights\" is false, but attention without its scale is not supported");
  }
  for (const char* name : {"scale_attn_by_inverse_layer_idx", "add_cross_attention"}) {
    if (config.boolean(name)) config.fail("\"", name, "\" is true, which is not supported");
  }
}

void write_gpt2(const ModelDescription&, Json& config) {
  for (const auto& [alias, name] : gpt2_aliases) {
    config[alias] = config[name];
    config.erase(name);
  }
  for (const char* name : {"num_key_value_heads", "head_dim", "rope_parameters", "rope_theta", "rope_scaling",
                           "attention_bias", "mlp_bias"}) {
    config.erase(name);
  }
}

void read_gpt_neox(const Fields& config, ModelDescription& model) {
  model.feed_forward_bias = true;  // whatever the field says
  model.parallel_residual = config.boolean("use_parallel_residual", true);
  check_multi_head_attention(config, model);
}

void write_gpt_neox(const ModelDescription& model, Json& config) {
  config["partial_rotary_factor"] = config["rope_parameters"]["partial_rotary_factor"] = model.partial_rotary_factor;
  for (const auto& [alias, name] : gpt_neox_aliases) {
    config[alias] = config[name];
    config.erase(name);
  }
  for (const char* name : {"num_key_value_heads", "head_dim", "mlp_bias"}) config.erase(name);
  config["use_parallel_residual"] = model.parallel_residual;
}

void write_layer_types(const ModelDescription& model, Json& config) {
  config["layer_types"] = Json::array();
  for (int64_t layer = 0; layer < model.num_layers; ++layer) {
    config["layer_types"].push_back(model.is_sliding(layer) ? "sliding_attention" : "full_attention");
  }
  config["sliding_window"] = model.attention_window > 0 ? model.attention_window : model.max_position_embeddings;
}

// Writes the layer types, and rotary embeddings for each of them in the style of transformers 5.
void write_rope_by_layer_type(const ModelDescription& model, Json& config) {
  write_layer_types(model, config);
  const Json shared = config["rope_parameters"];
  const Json sliding = {{"rope_type", "default"}, {"rope_theta", model.sliding_rope_theta}};
  config["rope_parameters"] = {{"full_attention", shared},
                               {"sliding_attention", model.sliding_rope_theta > 0 ? sliding : shared}};
}

// Reads Granite's multipliers. A null attention_multiplier means 1 / sqrt(head_dim): the section [model] may have it,
// although transformers refuses it.
void read_granite(const Fields& config, ModelDescription& model) {
  model.embedding_multiplier = config.positive_number("embedding_multiplier").value_or(1);
  model.residual_multiplier = config.positive_number("residual_multiplier").value_or(1);
  model.logits_scaling = config.positive_number("logits_scaling").value_or(1);
  const double usual = model.score_scale();
  const double fallback = config.contains("attention_multiplier") ? usual : 1;
  const double multiplier = config.positive_number("attention_multiplier").value_or(fallback);
  model.attention_multiplier = multiplier == usual ? 0 : multiplier;
}

void write_granite(const ModelDescription& model, Json& config) {
  config["embedding_multiplier"] = model.embedding_multiplier;
  config["residual_multiplier"] = model.residual_multiplier;
  config["attention_multiplier"] = model.score_scale();
  config["logits_scaling"] = model.logits_scaling;
}

void write_phi3(const ModelDescription& model, Json& config) {
  config["rope_parameters"]["partial_rotary_factor"] = model.partial_rotary_factor;
  config["partial_rotary_factor"] = model.partial_rotary_factor;
  config["embd_pdrop"] = 0.0;
  config["sliding_window"] = window_or_null(model);
  if (!model.rope_scaling) return;
  config["original_max_position_embeddings"] = model.rope_scaling->original_max_position_embeddings;
}

// Reads Gemma's multipliers. A null query_pre_attn_scalar means the usual 1 / sqrt(head_dim): the section [model] may
// have it, although transformers refuses it.
void read_gemma(const Fields& config, ModelDescription& model) {
  model.embedding_multiplier = std::sqrt(static_cast<double>(model.hidden_size));
  model.rounds_embedding_multiplier = true;
  const int64_t fallback = config.contains("query_pre_attn_scalar") ? model.head_dim : default_query_scalar;
  const int64_t scalar = config.integer("query_pre_attn_scalar", max_width).value_or(fallback);
  model.attention_multiplier = scalar == model.head_dim ? 0 : 1 / std::sqrt(static_cast<double>(scalar));
  if (config.boolean("use_bidirectional_attention")) {
    config.fail("\"use_bidirectional_attention\" is true, but only causal attention is supported");
  }
}

// Reads a soft-cap; a null means none.
double soft_cap(const Fields& config, const char* name, double fallback) {
  return config.contains(name) ? config.positive_number(name).value_or(0) : fallback;
}

void read_gemma2(const Fields& config, ModelDescription& model) {
  read_gemma(config, model);
  model.attention_softcap = soft_cap(config, "attn_logit_softcapping", model.attention_softcap);
  model.logits_softcap = soft_cap(config, "final_logit_softcapping", model.logits_softcap);
}

void write_gemma(const ModelDescription& model, Json& config) {
  config["query_pre_attn_scalar"] = std::llround(1 / (model.score_scale() * model.score_scale()));
}

void read_gemma3(const Fields& config, ModelDescription& model) {
  read_gemma(config, model);
  for (const char* name : {"final_logit_softcapping", "attn_logit_softcapping"}) {
    if (config.find(name)) {
      config.fail("\"", name, "\" is given, but soft-caps of gemma3_text are not supported; only gemma2's are");
    }
  }
}

void write_gemma2(const ModelDescription& model, Json& config) {
  write_layer_types(model, config);
  write_gemma(model, config);
  const auto or_null = [](double cap) { return cap > 0 ? Json(cap) : Json(nullptr); };
  config["attn_logit_softcapping"] = or_null(model.attention_softcap);
  config["final_logit_softcapping"] = or_null(model.logits_softcap);
}

void write_gemma3(const ModelDescription& model, Json& config) {
  write_rope_by_layer_type(model, config);
  write_gemma(model, config);
  config["rope_local_base_freq"] = model.sliding_rope_theta > 0 ? model.sliding_rope_theta : model.rope_theta;
  // In addition to layer_types, for programs that know only sliding_window_pattern.
  config["sliding_window_pattern"] =
      model.full_attention_interval > 0 ? model.full_attention_interval : model.num_layers + 1;
}

// Reads a property's name; an absent field leaves the default.
template <HasNames Part>
void read_part(const Fields& config, const char* name, Part& part) {
  const std::optional<std::string> text = config.text(name);
  if (!text) return;
  const std::optional<Part> found = find_value<Part>(*text);
  if (!found) config.fail("\"", config.key(name), "\" is \"", *text, "\"; expected ", join(all_names<Part>(), ", "));
  part = *found;
}

void read_copus_parts(const Fields& config, ModelDescription& model) {
  read_part(config, "norm", model.norm);
  read_part(config, "block_norm", model.block_norm);
  read_part(config, "qk_norm", model.qk_norm);
  read_part(config, "hidden_act", model.activation);
  model.gated_feed_forward = config.boolean("gated_feed_forward", model.gated_feed_forward);
  model.learned_positions = config.boolean("learned_positions");
}

void read_copus(const Fields& config, ModelDescription& model) {
  for (const char* name : {"rope_scaling", "rope_parameters"}) {
    const std::optional<Fields> rope = model.learned_positions ? config.fields(name) : std::nullopt;
    if (rope && rope_type_of(*rope) != "default") {
      config.fail("\"", name, "\" scales, but \"learned_positions\" is true, so nothing rotates; remove one of them");
    }
  }
  read_granite(config, model);
  model.no_rope_interval = config.integer("no_rope_layer_interval", max_layers, /*lowest=*/0).value_or(0);
  model.sliding_rope_theta = config.positive_number("sliding_rope_theta").value_or(0);
  model.attention_softcap = soft_cap(config, "attn_logit_softcapping", 0);
  model.logits_softcap = soft_cap(config, "final_logit_softcapping", 0);
  model.parallel_residual = config.boolean("use_parallel_residual");
}

void write_copus(const ModelDescription& model, Json& config) {
  write_granite(model, config);
  write_layer_types(model, config);
  config["norm"] = to_string(model.norm);
  config["block_norm"] = to_string(model.block_norm);
  config["qk_norm"] = to_string(model.qk_norm);
  config["hidden_act"] = to_string(model.activation);
  config["gated_feed_forward"] = model.gated_feed_forward;
  config["learned_positions"] = model.learned_positions;
  config["no_rope_layer_interval"] = model.no_rope_interval;
  config["use_parallel_residual"] = model.parallel_residual;
  config["rope_parameters"]["partial_rotary_factor"] = model.partial_rotary_factor;
  const auto or_null = [](double value) { return value > 0 ? Json(value) : Json(nullptr); };
  config["sliding_rope_theta"] = or_null(model.sliding_rope_theta);
  config["attn_logit_softcapping"] = or_null(model.attention_softcap);
  config["final_logit_softcapping"] = or_null(model.logits_softcap);
}

constexpr int64_t default_sliding_window = 4096;

ArchitectureConfig make_config(Architecture architecture) {
  switch (architecture) {
    case Architecture::llama:
      return {.fields = {"attention_bias", "mlp_bias"}, .heads_divide_stream = true};
    case Architecture::qwen2:
      return {.defaults = {.num_kv_heads = 32, .max_position_embeddings = 32768, .qkv_bias = true},
              .read = read_qwen,
              .write = write_qwen};
    case Architecture::mistral:
      return {.defaults = {.num_kv_heads = 8,
                           .max_position_embeddings = 131072,
                           .attention_window = default_sliding_window},
              .fields = {"sliding_window"},
              .write = write_mistral};
    case Architecture::qwen3:
      return {
          .defaults = {.num_kv_heads = 32, .head_dim = 128, .max_position_embeddings = 32768, .qk_norm = QkNorm::head},
          .fields = {"attention_bias"},
          .read = read_qwen,
          .write = write_qwen};
    case Architecture::smollm3:
      return {.defaults = {.num_kv_heads = 4,
                           .max_position_embeddings = 32768,
                           .rope_theta = 2000000.0,
                           .tie_word_embeddings = true,
                           .no_rope_interval = 4},
              .fields = {"no_rope_layer_interval", "attention_bias", "mlp_bias"},
              .read = read_smollm3,
              .write = write_smollm3};
    case Architecture::olmo2:
      return {.defaults = {.rms_norm_eps = 1e-5, .qk_norm = QkNorm::projection, .block_norm = BlockNorm::output},
              .fields = {"attention_bias"}};
    case Architecture::gpt2:
      return {.defaults = {.max_position_embeddings = 1024,
                           .norm = NormKind::layer,
                           .rms_norm_eps = 1e-5,
                           .learned_positions = true,
                           .tie_word_embeddings = true,
                           .activation = ActivationFunction::gelu_tanh,
                           .gated_feed_forward = false,
                           .scales_residual_initializer = true},
              .fields = {"attention_bias", "mlp_bias"},
              .dropout = {{"resid_pdrop", gpt2_dropout}, {"embd_pdrop", gpt2_dropout}, {"attn_pdrop", gpt2_dropout}},
              .activation = {"hidden_act", {"gelu_new", "gelu_pytorch_tanh"}},
              .derives_intermediate_size = true,
              .aliases = gpt2_aliases,
              .read = read_gpt2,
              .write = write_gpt2};
    case Architecture::olmo3:
      return {.defaults = {.rms_norm_eps = 1e-5,
                           .rope_theta = 500000.0,
                           .sliding_rope_theta = 500000.0,
                           .qk_norm = QkNorm::projection,
                           .block_norm = BlockNorm::output,
                           .attention_window = default_sliding_window,
                           .full_attention_interval = 4},
              .fields = {"sliding_window", "full_attention_interval", "sliding_rope_theta", "attention_bias"},
              .rope = {.by_layer_type = true},
              .write = write_rope_by_layer_type};
    case Architecture::granite:
      return {.fields = {"attention_bias", "mlp_bias", "embedding_multiplier", "residual_multiplier",
                         "attention_multiplier", "logits_scaling"},
              .read = read_granite,
              .write = write_granite};
    case Architecture::phi3:
      return {.defaults = {.max_position_embeddings = 4096, .rms_norm_eps = 1e-5},
              .fields = {"sliding_window", "partial_rotary_factor"},
              .dropout = {{"attention_dropout"}, {"resid_pdrop"}},
              .rope = {.is_phi3 = true, .may_be_partial = true},
              .write = write_phi3};
    case Architecture::gemma3_text:
      return {.defaults = {.num_kv_heads = 4,
                           .head_dim = 256,
                           .max_position_embeddings = 131072,
                           .rope_theta = 1e6,
                           .sliding_rope_theta = 1e4,
                           .tie_word_embeddings = true,
                           .activation = ActivationFunction::gelu_tanh,
                           .qk_norm = QkNorm::head,
                           .block_norm = BlockNorm::both,
                           .norms_add_one = true,
                           .attention_window = default_sliding_window,
                           .full_attention_interval = 6},
              .fields = {"sliding_window", "full_attention_interval", "sliding_rope_theta", "attention_bias",
                         "embedding_multiplier", "attention_multiplier"},
              .activation = {"hidden_activation", {"gelu_pytorch_tanh", "gelu_new"}},
              .rope = {.by_layer_type = true, .sliding_theta_field = "rope_local_base_freq"},
              .heads_divide_stream = true,
              .interval_field = "sliding_window_pattern",
              .read = read_gemma3,
              .write = write_gemma3};
    case Architecture::gemma2:
      return {.defaults = {.num_kv_heads = 4,
                           .head_dim = 256,
                           .max_position_embeddings = 8192,
                           .tie_word_embeddings = true,
                           .activation = ActivationFunction::gelu_tanh,
                           .block_norm = BlockNorm::both,
                           .norms_add_one = true,
                           .attention_window = default_sliding_window,
                           .full_attention_interval = 2,
                           .attention_softcap = 50,
                           .logits_softcap = 30},
              .fields = {"sliding_window", "full_attention_interval", "attention_bias", "embedding_multiplier",
                         "attention_multiplier", "attn_logit_softcapping", "final_logit_softcapping"},
              .activation = {"hidden_activation", {"gelu_pytorch_tanh", "gelu_new"}},
              .heads_divide_stream = true,
              .read = read_gemma2,
              .write = write_gemma2};
    case Architecture::gpt_neox:
      return {.defaults = {.norm = NormKind::layer,
                           .rms_norm_eps = 1e-5,
                           .partial_rotary_factor = 0.25,
                           .attention_output_bias = true,
                           .activation = ActivationFunction::gelu,
                           .gated_feed_forward = false},
              .fields = {"partial_rotary_factor", "attention_bias", "mlp_bias", "use_parallel_residual"},
              .dropout = {{"attention_dropout"}, {"hidden_dropout"}},
              .activation = {"hidden_act", {"gelu"}},
              .rope = {.may_be_partial = true},
              .heads_divide_stream = true,
              .aliases = gpt_neox_aliases,
              .read = read_gpt_neox,
              .write = write_gpt_neox};
    case Architecture::copus:
      return {.fields = {"norm",
                         "block_norm",
                         "qk_norm",
                         "hidden_act",
                         "gated_feed_forward",
                         "learned_positions",
                         "no_rope_layer_interval",
                         "sliding_window",
                         "full_attention_interval",
                         "sliding_rope_theta",
                         "partial_rotary_factor",
                         "attention_bias",
                         "mlp_bias",
                         "embedding_multiplier",
                         "residual_multiplier",
                         "attention_multiplier",
                         "logits_scaling",
                         "attn_logit_softcapping",
                         "final_logit_softcapping",
                         "use_parallel_residual"},
              .activation = {"hidden_act", {"silu", "gelu_pytorch_tanh", "gelu"}},
              .rope = {.may_be_partial = true},
              .read_parts = read_copus_parts,
              .read = read_copus,
              .write = write_copus};
  }
  fail_check("known architecture", __FILE__, __LINE__, "");
}

// The values without effect that are not 0, by field.
constexpr std::pair<std::string_view, double> values_without[] = {
    {"partial_rotary_factor", 1}, {"embedding_multiplier", 1}, {"residual_multiplier", 1}, {"logits_scaling", 1}};

}  // namespace

std::vector<Architecture> architectures_with(std::string_view field) {
  std::vector<Architecture> all;
  for (const auto& [architecture, name] : named_values<Architecture>) {
    if (config_of(architecture).has(field)) all.push_back(architecture);
  }
  return all;
}

double value_without(std::string_view field) {
  for (const auto& [name, value] : values_without) {
    if (name == field) return value;
  }
  return 0;
}

bool ArchitectureConfig::has(std::string_view field) const { return std::ranges::find(fields, field) != fields.end(); }

const ArchitectureConfig& config_of(Architecture architecture) {
  static const auto all = [] {
    std::map<Architecture, ArchitectureConfig> configs;
    for (const auto& [known, name] : named_values<Architecture>) {
      configs.emplace(known, make_config(known)).first->second.defaults.architecture = known;
    }
    return configs;
  }();
  return all.at(architecture);
}

}  // namespace copus
