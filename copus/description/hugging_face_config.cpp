// Reads and writes config.json, which describes a model's shape for Hugging Face transformers.
//
// Absent fields take the defaults of transformers' configuration classes (LlamaConfig, Qwen2Config, ...), so that a
// file means the same model in both programs. Models that we cannot train exactly are refused, never approximated.
#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "copus/base/error.h"
#include "copus/description/model_description.h"
#include "copus/description/rope_config.h"

namespace copus {

namespace {

using Json = nlohmann::json;

// "LlamaForCausalLM, Qwen2ForCausalLM, ... and SmolLM3ForCausalLM"
std::string supported_classes() {
  constexpr auto& all = named_values<Architecture>;
  std::string list;
  for (size_t i = 0; i < all.size(); ++i) {
    list += concat(i == 0 ? "" : i + 1 < all.size() ? ", " : " and ", causal_language_model_class(all[i].value));
  }
  return list;
}

// Upper limits of sizes. They are generous, and keep the number of parameters far below 2^63.
constexpr int64_t max_vocab_size = std::numeric_limits<int32_t>::max();
constexpr int64_t max_width = int64_t{1} << 20;
constexpr int64_t max_intermediate_size = int64_t{1} << 24;
constexpr int64_t max_layers = int64_t{1} << 12;
constexpr int64_t max_heads = int64_t{1} << 16;
constexpr int64_t max_head_dim = int64_t{1} << 12;

constexpr int64_t default_sliding_window = 4096;
constexpr int64_t default_query_scalar = 256;
constexpr int64_t default_no_rope_interval = 4;
constexpr double gpt2_dropout = 0.1;

// transformers' defaults that differ between architectures.
struct ArchitectureDefaults {
  int64_t max_position_embeddings;
  std::optional<int64_t> num_key_value_heads = std::nullopt;  // empty: equal to num_attention_heads
  std::optional<int64_t> head_dim = std::nullopt;             // empty: hidden_size / num_attention_heads
  double rope_theta = 10000.0;
  double sliding_rope_theta = 0;        // of sliding layers, if layers have types
  int64_t full_attention_interval = 0;  // if layers have types
  bool tie_word_embeddings = false;
  double rms_norm_eps = 1e-6;
};

ArchitectureDefaults defaults_of(Architecture architecture) {
  switch (architecture) {
    case Architecture::llama:
    case Architecture::granite:
      return {.max_position_embeddings = 2048};
    case Architecture::gemma3_text:
      return {.max_position_embeddings = 131072,
              .num_key_value_heads = 4,
              .head_dim = 256,
              .rope_theta = 1e6,
              .sliding_rope_theta = 1e4,
              .full_attention_interval = 6,
              .tie_word_embeddings = true};
    case Architecture::phi3:
      return {.max_position_embeddings = 4096, .rms_norm_eps = 1e-5};
    case Architecture::qwen2:
      return {.max_position_embeddings = 32768, .num_key_value_heads = 32};
    case Architecture::mistral:
      return {.max_position_embeddings = 131072, .num_key_value_heads = 8};
    case Architecture::qwen3:
      return {.max_position_embeddings = 32768, .num_key_value_heads = 32, .head_dim = 128};
    case Architecture::smollm3:
      return {.max_position_embeddings = 32768,
              .num_key_value_heads = 4,
              .rope_theta = 2000000.0,
              .tie_word_embeddings = true};
    case Architecture::olmo2:
      return {.max_position_embeddings = 2048, .rms_norm_eps = 1e-5};
    case Architecture::gpt2:
      return {.max_position_embeddings = 1024, .tie_word_embeddings = true, .rms_norm_eps = 1e-5};
    case Architecture::olmo3:
      return {.max_position_embeddings = 2048,
              .rope_theta = 500000.0,
              .sliding_rope_theta = 500000.0,
              .full_attention_interval = 4,
              .rms_norm_eps = 1e-5};
  }
  fail_check("known architecture", __FILE__, __LINE__, "");
}

// GPT-2's own names of fields. transformers also accepts the names of other architectures.
constexpr FieldAlias gpt2_aliases[] = {{"n_embd", "hidden_size"},
                                       {"n_layer", "num_hidden_layers"},
                                       {"n_head", "num_attention_heads"},
                                       {"n_inner", "intermediate_size"},
                                       {"n_positions", "max_position_embeddings"},
                                       {"activation_function", "hidden_act"},
                                       {"layer_norm_epsilon", "rms_norm_eps"}};

// Fields that only some architectures have.
struct OwnField {
  std::string_view name;
  std::vector<Architecture> architectures;
  double value_without = 0;  // the value without an effect
};
const std::vector<OwnField>& own_fields() {
  using enum Architecture;
  static const std::vector<OwnField> fields = {
      {"sliding_window", {mistral, olmo3, phi3, gemma3_text}},
      {"partial_rotary_factor", {phi3}, 1},
      {"full_attention_interval", {olmo3, gemma3_text}},
      {"sliding_rope_theta", {olmo3, gemma3_text}},
      {"no_rope_layer_interval", {smollm3}},
      {"attention_bias", {llama, qwen3, smollm3, olmo2, gpt2, olmo3, granite, gemma3_text}},
      {"mlp_bias", {llama, smollm3, gpt2, granite}},
      {"embedding_multiplier", {granite, gemma3_text}, 1},
      {"residual_multiplier", {granite}, 1},
      {"attention_multiplier", {granite, gemma3_text}},
      {"logits_scaling", {granite}, 1}};
  return fields;
}

bool has_field(Architecture architecture, std::string_view field) {
  const auto all = architectures_with(field);
  return all.empty() || std::ranges::find(all, architecture) != all.end();
}

// Fields of dropout, and transformers' defaults.
struct DropoutField {
  const char* name;
  std::vector<Architecture> architectures;
  double fallback = 0;
};
const std::vector<DropoutField>& dropout_fields() {
  using enum Architecture;
  static const std::vector<DropoutField> fields = {
      {"attention_dropout", {llama, qwen2, mistral, qwen3, smollm3, olmo2, olmo3, granite, phi3, gemma3_text}},
      {"resid_pdrop", {gpt2}, gpt2_dropout},
      {"embd_pdrop", {gpt2}, gpt2_dropout},
      {"attn_pdrop", {gpt2}, gpt2_dropout},
      {"resid_pdrop", {phi3}}};
  return fields;
}

// Whether config.json may give each layer a type of attention, and each type its rotary embeddings.
bool has_layer_types(Architecture architecture) { return has_field(architecture, "full_attention_interval"); }

// Uses `architectures` if present, otherwise `model_type`.
Architecture parse_architecture(const Fields& config) {
  const std::optional<std::string> type = config.text("model_type");
  std::optional<std::string> class_name;
  if (const Json* list = config.find("architectures")) {
    if (!list->is_array() || list->size() != 1 || !list->front().is_string()) {
      config.fail("\"architectures\" must be a list of one class name, got ", describe(*list));
    }
    class_name = list->front().get<std::string>();
  }
  if (!class_name && !type) {
    config.fail("neither \"architectures\" nor \"model_type\" says what model this is; supported are ",
                supported_classes());
  }
  for (const auto& [architecture, name] : named_values<Architecture>) {
    if (class_name ? *class_name != causal_language_model_class(architecture) : *type != to_string(architecture)) {
      continue;
    }
    if (type && *type != to_string(architecture)) {
      config.fail("\"architectures\" says ", *class_name, " but \"model_type\" says ", *type);
    }
    return architecture;
  }
  config.fail("architecture ", class_name ? *class_name : *type, " is not supported; supported are ",
              supported_classes());
}

// Reads which layers have no rotary embeddings: a list of 1 and 0, or an interval. Published lists correspond to an
// interval.
void parse_no_rope(const Fields& config, ModelDescription& model) {
  if (model.architecture != Architecture::smollm3) return;  // transformers ignores the fields there
  model.no_rope_interval =
      config.integer("no_rope_layer_interval", max_layers, /*lowest=*/0).value_or(default_no_rope_interval);
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

void parse_heads(const Fields& config, ModelDescription& model) {
  model.num_heads = config.required_integer("num_attention_heads", max_heads);

  // A null means the number of heads; an absent field means the architecture's default.
  const bool absent = !config.contains("num_key_value_heads");
  const int64_t fallback =
      absent ? defaults_of(model.architecture).num_key_value_heads.value_or(model.num_heads) : model.num_heads;
  model.num_kv_heads = config.integer("num_key_value_heads", max_heads).value_or(fallback);
  if (model.num_heads % model.num_kv_heads != 0) {
    config.fail("\"num_attention_heads\" (", model.num_heads, ") must be a multiple of \"num_key_value_heads\" (",
                model.num_kv_heads, absent ? ", transformers' default, as the field is absent" : "", ")");
  }

  std::optional<int64_t> head_dim = config.integer("head_dim", max_head_dim);
  if (!config.contains("head_dim")) head_dim = defaults_of(model.architecture).head_dim;
  // LlamaConfig and Gemma3TextConfig require this even if head_dim is given.
  const bool insists = model.architecture == Architecture::llama || model.architecture == Architecture::gemma3_text;
  if ((!head_dim || insists) && model.hidden_size % model.num_heads != 0) {
    config.fail("\"hidden_size\" (", model.hidden_size, ") must be a multiple of \"num_attention_heads\" (",
                model.num_heads, ")");
  }
  model.head_dim = head_dim.value_or(model.hidden_size / model.num_heads);
  if (model.head_dim > max_head_dim) {
    config.fail("\"hidden_size\" / \"num_attention_heads\" is a head dimension of ", model.head_dim,
                "; it must be at most ", max_head_dim);
  }
  if (model.head_dim % 2 != 0 && !model.learned_positions) {
    config.fail("the head dimension (", head_dim ? "" : "\"hidden_size\" / \"num_attention_heads\" = ", model.head_dim,
                ") must be even: rotary embeddings turn pairs of numbers");
  }
}

// Reads which layers are sliding. In published lists every n-th layer is not.
void parse_layer_types(const Fields& config, ModelDescription& model) {
  model.full_attention_interval = defaults_of(model.architecture).full_attention_interval;
  if (model.architecture == Architecture::gemma3_text) {
    model.full_attention_interval =
        config.integer("sliding_window_pattern", max_layers).value_or(model.full_attention_interval);
  }
  const Json* list = config.find("layer_types");
  if (list) {
    const auto is_full = [](const Json& type) { return type == "full_attention"; };
    const auto is_known = [&](const Json& type) { return is_full(type) || type == "sliding_attention"; };
    if (!list->is_array() || std::ssize(*list) != model.num_layers || !std::ranges::all_of(*list, is_known)) {
      config.fail("\"layer_types\" must list \"full_attention\" or \"sliding_attention\" for each of the ",
                  model.num_layers, " layers, got ", describe(*list));
    }
    const auto first = std::ranges::find_if(*list, is_full) - list->begin();
    model.full_attention_interval = first < model.num_layers ? first + 1 : 0;
    for (int64_t layer = 0; layer < model.num_layers; ++layer) {
      if (model.is_sliding(layer) != is_full((*list)[layer])) continue;
      config.fail("\"layer_types\" must have \"full_attention\" in every n-th layer alone; other lists are not ",
                  "supported: entry ", layer, " breaks the interval of ", model.full_attention_interval);
    }
  }
  if (model.full_attention_interval > model.num_layers) model.full_attention_interval = 0;  // all layers are sliding
}

// Reads the window of attention. A window as long as the longest sequence counts as none.
void parse_window(const Fields& config, ModelDescription& model) {
  switch (model.architecture) {
    case Architecture::llama:  // transformers ignores the field
    case Architecture::granite:
    case Architecture::olmo2:
    case Architecture::gpt2:
      return;
    case Architecture::qwen2:
    case Architecture::qwen3:
    case Architecture::smollm3:
      if (config.boolean("use_sliding_window")) {
        config.fail("\"use_sliding_window\" is true, but sliding windows in only some layers are not supported");
      }
      return;
    case Architecture::olmo3:
    case Architecture::gemma3_text:
      parse_layer_types(config, model);
      break;
    case Architecture::mistral:
    case Architecture::phi3:
      break;
  }
  const int64_t window = config.contains("sliding_window") ? config.integer("sliding_window", max_positions).value_or(0)
                         : model.architecture == Architecture::phi3 ? 0
                                                                    : default_sliding_window;
  if (window < model.max_position_embeddings) model.attention_window = window;
}

void parse_biases(const Fields& config, ModelDescription& model) {
  const auto has = [&](const char* name) { return has_field(model.architecture, name) && config.boolean(name); };
  model.attention_output_bias = has("attention_bias");
  model.qkv_bias = model.attention_output_bias || model.architecture == Architecture::qwen2;
  model.feed_forward_bias = has("mlp_bias");
}

// Reads how Gemma 3 differs from Llama. transformers refuses a null for query_pre_attn_scalar. It comes from the
// section [model], and means the usual multiplier of scores.
void parse_gemma3(const Fields& config, ModelDescription& model) {
  model.embedding_multiplier = std::sqrt(static_cast<double>(model.hidden_size));
  model.rounds_embedding_multiplier = true;
  const int64_t fallback = config.contains("query_pre_attn_scalar") ? model.head_dim : default_query_scalar;
  const int64_t scalar = config.integer("query_pre_attn_scalar", max_width).value_or(fallback);
  model.attention_multiplier = scalar == model.head_dim ? 0 : 1 / std::sqrt(static_cast<double>(scalar));
  for (const char* name : {"final_logit_softcapping", "attn_logit_softcapping"}) {
    if (config.find(name)) config.fail("\"", name, "\" is given, but soft-caps are not supported");
  }
  if (config.boolean("use_bidirectional_attention")) {
    config.fail("\"use_bidirectional_attention\" is true, but only causal attention is supported");
  }
}

// Reads the multipliers of Granite. A model without an attention multiplier has the usual one. transformers refuses a
// null, which the section [model] uses for the usual one.
void parse_multipliers(const Fields& config, ModelDescription& model) {
  if (!has_field(model.architecture, "residual_multiplier")) return;
  model.embedding_multiplier = config.positive_number("embedding_multiplier").value_or(1);
  model.residual_multiplier = config.positive_number("residual_multiplier").value_or(1);
  model.logits_scaling = config.positive_number("logits_scaling").value_or(1);
  const double usual = model.score_scale();
  const double fallback = config.contains("attention_multiplier") ? usual : 1;
  const double multiplier = config.positive_number("attention_multiplier").value_or(fallback);
  model.attention_multiplier = multiplier == usual ? 0 : multiplier;
}

// Sets how GPT-2 differs from Llama.
void parse_gpt2(const Fields& config, ModelDescription& model) {
  model.norm = NormKind::layer;
  model.learned_positions = true;
  model.gated_feed_forward = false;
  model.qkv_bias = model.attention_output_bias = model.feed_forward_bias = true;
  model.scales_residual_initializer = true;
  if (!config.find("intermediate_size")) model.intermediate_size = 4 * model.hidden_size;
  if (model.num_kv_heads != model.num_heads || model.num_heads * model.head_dim != model.hidden_size) {
    config.fail("a model of gpt2 has as many key/value heads as heads, which together are as wide as \"",
                config.key("hidden_size"), "\" (", model.hidden_size, "), got ", model.num_kv_heads, " and ",
                model.num_heads, " heads of ", model.head_dim);
  }
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

void parse_activation(const Fields& config, ModelDescription& model) {
  const bool is_gemma = model.architecture == Architecture::gemma3_text;
  const bool is_gelu = is_gemma || model.architecture == Architecture::gpt2;
  const char* field = is_gemma ? "hidden_activation" : "hidden_act";
  model.activation = is_gelu ? ActivationFunction::gelu_tanh : ActivationFunction::silu;
  const std::string name = config.text(field).value_or(is_gelu ? "gelu_new" : "silu");
  const bool is_known = is_gelu ? name == "gelu_new" || name == "gelu_pytorch_tanh" : name == "silu";
  if (is_known) return;
  config.fail("\"", config.key(field), "\" is \"", name, "\"; only ",
              is_gelu ? "\"gelu_new\" and \"gelu_pytorch_tanh\" are" : "\"silu\" is", " supported");
}

void refuse_unsupported_features(const Fields& config, const ModelDescription& model) {
  if (config.find("quantization_config")) {
    config.fail(
        "\"quantization_config\" is present, but quantized weights are not supported; use the unquantized model");
  }
  const Json* types = has_layer_types(model.architecture) ? nullptr : config.find("layer_types");
  if (types) {
    const auto is_full = [](const Json& type) { return type == "full_attention"; };
    if (!types->is_array() || !std::all_of(types->begin(), types->end(), is_full)) {
      config.fail("\"layer_types\" must name only \"full_attention\", got ", describe(*types));
    }
  }
}

}  // namespace

std::span<const Architecture> architectures_with(std::string_view field) {
  const auto found = std::ranges::find(own_fields(), field, &OwnField::name);
  return found == own_fields().end() ? std::span<const Architecture>() : found->architectures;
}

double value_without(std::string_view field) {
  const auto found = std::ranges::find(own_fields(), field, &OwnField::name);
  return found == own_fields().end() ? 0 : found->value_without;
}

std::string dropout_in(std::string_view json_text, const std::string& source) {
  const Json json = parse_config_object(json_text, source);
  const Fields config(json, source);
  const Architecture architecture = parse_architecture(config);
  for (const DropoutField& field : dropout_fields()) {
    if (std::ranges::find(field.architectures, architecture) == field.architectures.end()) continue;
    const double share = config.number(field.name).value_or(field.fallback);
    if (share == 0) continue;
    return concat("\"", field.name, "\" is ", share, config.contains(field.name) ? "" : " (transformers' default)");
  }
  return "";
}

ModelDescription parse_model_description(std::string_view json_text, const std::string& source) {
  const Json json = parse_config_object(json_text, source);
  Fields config(json, source);
  ModelDescription model;
  model.architecture = parse_architecture(config);
  const bool is_gpt2 = model.architecture == Architecture::gpt2;
  if (is_gpt2) {
    config.accept(gpt2_aliases);
    model.learned_positions = true;
  }
  if (model.architecture == Architecture::qwen3) model.qk_norm = QkNorm::head;
  if (model.architecture == Architecture::gemma3_text) {
    model.qk_norm = QkNorm::head;
    model.block_norm = BlockNorm::both;
    model.norms_add_one = true;
  }
  if (model.architecture == Architecture::olmo2 || model.architecture == Architecture::olmo3) {
    model.qk_norm = QkNorm::projection;
    model.block_norm = BlockNorm::output;
  }
  model.vocab_size = config.required_integer("vocab_size", max_vocab_size);
  model.hidden_size = config.required_integer("hidden_size", max_width);
  if (!is_gpt2 || config.find("intermediate_size")) {
    model.intermediate_size = config.required_integer("intermediate_size", max_intermediate_size);
  }
  model.num_layers = config.required_integer("num_hidden_layers", max_layers);
  model.max_position_embeddings = config.integer("max_position_embeddings", max_positions)
                                      .value_or(defaults_of(model.architecture).max_position_embeddings);
  model.rms_norm_eps = config.positive_number("rms_norm_eps").value_or(defaults_of(model.architecture).rms_norm_eps);
  model.tie_word_embeddings =
      config.boolean("tie_word_embeddings", defaults_of(model.architecture).tie_word_embeddings);
  model.initializer_range = config.positive_number("initializer_range").value_or(0.02);
  if (model.initializer_range > 1) {
    config.fail("\"initializer_range\" must be at most 1, got ", model.initializer_range);
  }
  parse_heads(config, model);
  if (!is_gpt2) {
    const ArchitectureDefaults defaults = defaults_of(model.architecture);
    const bool is_phi3 = model.architecture == Architecture::phi3;
    parse_rope(config,
               {.theta = defaults.rope_theta,
                .sliding_theta = defaults.sliding_rope_theta,
                .by_layer_type = has_layer_types(model.architecture),
                .may_be_scaled = !is_phi3,
                .may_be_partial = is_phi3},
               model);
  }
  parse_no_rope(config, model);
  parse_window(config, model);
  parse_biases(config, model);
  parse_activation(config, model);
  parse_multipliers(config, model);
  if (is_gpt2) parse_gpt2(config, model);
  if (model.architecture == Architecture::gemma3_text) parse_gemma3(config, model);
  refuse_unsupported_features(config, model);
  return model;
}

std::string to_hugging_face_config(const ModelDescription& model, std::string_view torch_dtype) {
  Json rope_parameters = rope_object(model);
  rope_parameters["rope_theta"] = model.rope_theta;
  Json config = {
      {"architectures", {causal_language_model_class(model.architecture)}},
      {"model_type", to_string(model.architecture)},
      {"vocab_size", model.vocab_size},
      {"hidden_size", model.hidden_size},
      {"intermediate_size", model.intermediate_size},
      {"num_hidden_layers", model.num_layers},
      {"num_attention_heads", model.num_heads},
      {"num_key_value_heads", model.num_kv_heads},
      {"head_dim", model.head_dim},
      {"hidden_act", "silu"},
      {"max_position_embeddings", model.max_position_embeddings},
      {"rms_norm_eps", model.rms_norm_eps},
      {"tie_word_embeddings", model.tie_word_embeddings},
      {"initializer_range", model.initializer_range},
      {"attention_dropout", 0.0},
      {"use_cache", true},
      {"bos_token_id", nullptr},
      {"eos_token_id", nullptr},
      {"pad_token_id", nullptr},
      // Transformers 5 reads the first of these, transformers 4 the other two.
      {"rope_parameters", rope_parameters},
      {"rope_theta", model.rope_theta},
      {"rope_scaling", model.rope_scaling ? rope_object(model) : Json(nullptr)},
      // Transformers reads `dtype` since 4.56, `torch_dtype` before.
      {"dtype", torch_dtype},
      {"torch_dtype", torch_dtype},
  };
  if (has_field(model.architecture, "attention_bias")) config["attention_bias"] = model.attention_output_bias;
  if (has_field(model.architecture, "mlp_bias")) config["mlp_bias"] = model.feed_forward_bias;
  switch (model.architecture) {
    case Architecture::llama:
    case Architecture::olmo2:
      break;
    case Architecture::granite:
      config["embedding_multiplier"] = model.embedding_multiplier;
      config["residual_multiplier"] = model.residual_multiplier;
      config["attention_multiplier"] = model.score_scale();
      config["logits_scaling"] = model.logits_scaling;
      break;
    case Architecture::gpt2:
      for (const auto& [alias, name] : gpt2_aliases) {
        config[alias] = config[name];
        config.erase(name);
      }
      for (const char* name : {"num_key_value_heads", "head_dim", "rope_parameters", "rope_theta", "rope_scaling",
                               "attention_dropout", "attention_bias", "mlp_bias"}) {
        config.erase(name);
      }
      for (const char* name : {"resid_pdrop", "embd_pdrop", "attn_pdrop"}) config[name] = 0.0;
      config["activation_function"] = "gelu_new";
      break;
    case Architecture::qwen2:
      config["use_sliding_window"] = false;
      break;
    case Architecture::gemma3_text:
    case Architecture::olmo3: {
      const bool slides_alone = model.sliding_rope_theta > 0;
      const Json sliding = {{"rope_type", "default"}, {"rope_theta", model.sliding_rope_theta}};
      config["rope_parameters"] = {{"full_attention", rope_parameters},
                                   {"sliding_attention", slides_alone ? sliding : rope_parameters}};
      config["layer_types"] = Json::array();
      for (int64_t layer = 0; layer < model.num_layers; ++layer) {
        config["layer_types"].push_back(model.is_sliding(layer) ? "sliding_attention" : "full_attention");
      }
      config["sliding_window"] = model.attention_window > 0 ? model.attention_window : model.max_position_embeddings;
      if (model.architecture == Architecture::olmo3) break;
      config["query_pre_attn_scalar"] = std::llround(1 / (model.score_scale() * model.score_scale()));
      config["rope_local_base_freq"] = slides_alone ? model.sliding_rope_theta : model.rope_theta;
      // In addition to layer_types, for programs that know only this field.
      config["sliding_window_pattern"] =
          model.full_attention_interval > 0 ? model.full_attention_interval : model.num_layers + 1;
      config.erase("hidden_act");
      config["hidden_activation"] = "gelu_pytorch_tanh";
      break;
    }
    case Architecture::phi3:
      config["rope_parameters"]["partial_rotary_factor"] = model.partial_rotary_factor;
      config["partial_rotary_factor"] = model.partial_rotary_factor;
      for (const char* name : {"resid_pdrop", "embd_pdrop"}) config[name] = 0.0;
      config["sliding_window"] = model.attention_window > 0 ? Json(model.attention_window) : Json(nullptr);
      break;
    case Architecture::mistral:
      config["sliding_window"] = model.attention_window > 0 ? Json(model.attention_window) : Json(nullptr);
      break;
    case Architecture::qwen3:
      config["use_sliding_window"] = false;
      break;
    case Architecture::smollm3:
      config["use_sliding_window"] = false;
      config["no_rope_layers"] = Json::array();
      for (int64_t layer = 0; layer < model.num_layers; ++layer) {
        config["no_rope_layers"].push_back(model.has_rope(layer) ? 1 : 0);
      }
      break;
  }
  return config.dump(2) + "\n";
}

}  // namespace copus
