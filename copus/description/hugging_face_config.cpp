// Reads config.json, Hugging Face transformers' description of a model. The fields that only one architecture has are
// in architecture_config.cpp.
//
// Absent fields have the defaults of transformers' configuration classes (LlamaConfig, Qwen2Config, ...), so that a
// file means the same model in both programs. Models that Copus cannot train exactly are refused, never approximated.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "copus/base/error.h"
#include "copus/description/architecture_config.h"
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

void parse_heads(const Fields& config, ModelDescription& model) {
  model.num_heads = config.required_integer("num_attention_heads", max_heads);

  // null stands for the number of heads, absence for the architecture's default.
  const bool absent = !config.contains("num_key_value_heads");
  const ArchitectureConfig& own = config_of(model.architecture);
  const int64_t fallback = absent && own.defaults.num_kv_heads > 0 ? own.defaults.num_kv_heads : model.num_heads;
  model.num_kv_heads = config.integer("num_key_value_heads", max_heads).value_or(fallback);
  if (model.num_heads % model.num_kv_heads != 0) {
    config.fail("\"num_attention_heads\" (", model.num_heads, ") must be a multiple of \"num_key_value_heads\" (",
                model.num_kv_heads, absent ? ", transformers' default, as the field is absent" : "", ")");
  }

  std::optional<int64_t> head_dim = config.integer("head_dim", max_head_dim);
  if (!config.contains("head_dim") && own.defaults.head_dim > 0) head_dim = own.defaults.head_dim;
  if ((!head_dim || own.heads_divide_stream) && model.hidden_size % model.num_heads != 0) {
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

// Reads which layers are sliding. In published models all layers but every n-th are.
void parse_layer_types(const Fields& config, ModelDescription& model) {
  if (const char* field = config_of(model.architecture).interval_field) {
    model.full_attention_interval = config.integer(field, max_layers).value_or(model.full_attention_interval);
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

// Reads the attention window. A window as long as the longest sequence has no effect and counts as none.
void parse_window(const Fields& config, ModelDescription& model) {
  const ArchitectureConfig& own = config_of(model.architecture);
  if (!own.has("sliding_window")) return;  // transformers ignores the field here
  if (own.has_layer_types()) parse_layer_types(config, model);
  const int64_t window = config.contains("sliding_window") ? config.integer("sliding_window", max_positions).value_or(0)
                                                           : own.defaults.attention_window;
  model.attention_window = window < model.max_position_embeddings ? window : 0;
}

void parse_biases(const Fields& config, ModelDescription& model) {
  const ArchitectureConfig& own = config_of(model.architecture);
  if (own.has("attention_bias")) {
    model.qkv_bias = model.attention_output_bias = config.boolean("attention_bias", model.attention_output_bias);
  }
  if (own.has("mlp_bias")) model.feed_forward_bias = config.boolean("mlp_bias");
}

void check_activation(const Fields& config, const ActivationNames& known) {
  const std::string name = config.text(known.field).value_or(std::string(known.names.front()));
  if (std::ranges::find(known.names, name) != known.names.end()) return;
  std::string list;
  for (const std::string_view one : known.names) list += concat(list.empty() ? "\"" : " and \"", one, "\"");
  config.fail("\"", config.key(known.field), "\" is \"", name, "\"; only ", list,
              known.names.size() > 1 ? " are supported" : " is supported");
}

void refuse_unsupported_features(const Fields& config, const ModelDescription& model) {
  if (config.find("quantization_config")) {
    config.fail(
        "\"quantization_config\" is present, but quantized weights are not supported; use the unquantized model");
  }
  const Json* types = config_of(model.architecture).has_layer_types() ? nullptr : config.find("layer_types");
  if (types) {
    const auto is_full = [](const Json& type) { return type == "full_attention"; };
    if (!types->is_array() || !std::all_of(types->begin(), types->end(), is_full)) {
      config.fail("\"layer_types\" must name only \"full_attention\", got ", describe(*types));
    }
  }
}

}  // namespace

std::string dropout_in(std::string_view json_text, const std::string& source) {
  const Json json = parse_config_object(json_text, source);
  const Fields config(json, source);
  for (const DropoutField& field : config_of(parse_architecture(config)).dropout) {
    const double share = config.number(field.name).value_or(field.fallback);
    if (share == 0) continue;
    return concat("\"", field.name, "\" is ", share, config.contains(field.name) ? "" : " (transformers' default)");
  }
  return "";
}

ModelDescription parse_model_description(std::string_view json_text, const std::string& source) {
  const Json json = parse_config_object(json_text, source);
  Fields config(json, source);
  const ArchitectureConfig& own = config_of(parse_architecture(config));
  config.accept(own.aliases);
  ModelDescription model = own.defaults;
  if (own.read_parts != nullptr) own.read_parts(config, model);
  model.vocab_size = config.required_integer("vocab_size", max_vocab_size);
  model.hidden_size = config.required_integer("hidden_size", max_width);
  if (!own.derives_intermediate_size || config.find("intermediate_size")) {
    model.intermediate_size = config.required_integer("intermediate_size", max_intermediate_size);
  }
  model.num_layers = config.required_integer("num_hidden_layers", max_layers);
  model.max_position_embeddings =
      config.integer("max_position_embeddings", max_positions).value_or(model.max_position_embeddings);
  model.rms_norm_eps = config.positive_number("rms_norm_eps").value_or(model.rms_norm_eps);
  model.tie_word_embeddings = config.boolean("tie_word_embeddings", model.tie_word_embeddings);
  model.initializer_range = config.positive_number("initializer_range").value_or(model.initializer_range);
  if (model.initializer_range > 1) {
    config.fail("\"initializer_range\" must be at most 1, got ", model.initializer_range);
  }
  parse_heads(config, model);
  if (!model.learned_positions) parse_rope(config, own.rope, model);
  parse_window(config, model);
  parse_biases(config, model);
  check_activation(config, own.activation);
  if (own.read != nullptr) own.read(config, model);
  refuse_unsupported_features(config, model);
  return model;
}

}  // namespace copus
