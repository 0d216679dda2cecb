#include "copus/config/model_section.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "copus/base/error.h"
#include "copus/base/text/text_distance.h"
#include "copus/config/descriptions.h"
#include "copus/config/run_config_fields.h"
#include "copus/config/settings_reader.h"

namespace copus {

namespace {

using Json = nlohmann::json;

Json to_json(const Setting& setting) {
  switch (setting.kind) {
    case Setting::Kind::boolean:
      return std::get<bool>(setting.value);
    case Setting::Kind::integer:
      return std::get<int64_t>(setting.value);
    case Setting::Kind::number: {
      const double number = std::get<double>(setting.value);
      const bool whole = std::trunc(number) == number && std::abs(number) <= 0x1p53;  // TOML reads 1e3 as a float
      return whole ? Json(static_cast<int64_t>(number)) : Json(number);
    }
    case Setting::Kind::text:
      return std::get<std::string>(setting.value);
    case Setting::Kind::table: {
      Json object = Json::object();
      for (const Setting& child : setting.children) object[child.name] = to_json(child);
      return object;
    }
    case Setting::Kind::list: {
      Json array = Json::array();
      for (const Setting& child : setting.children) array.push_back(to_json(child));
      return array;
    }
    default:
      return nullptr;  // the reader has refused all other types
  }
}

// Replaces Copus' interval of full-attention layers by transformers' list of layer types.
void describe_layer_types(Json& config) {
  constexpr int64_t most_layers = 1 << 16;
  const int64_t interval = config.value("full_attention_interval", int64_t{0});
  const Json layers = config.value("num_hidden_layers", Json());
  if (layers.is_number_integer() && layers > 0 && layers <= most_layers) {
    config["layer_types"] = Json::array();
    for (int64_t layer = 1; layer <= layers.get<int64_t>(); ++layer) {
      const bool is_full = interval > 0 && layer % interval == 0;
      config["layer_types"].push_back(is_full ? "full_attention" : "sliding_attention");
    }
  }
}

// Replaces the rotary embeddings by transformers' objects for each layer type.
void describe_rope_by_layer_type(Json& config) {
  Json full = config.value("rope_scaling", Json::object());
  full["rope_theta"] = config["rope_theta"];
  const Json sliding = {{"rope_theta", config.value("sliding_rope_theta", Json(0))}};
  config["rope_parameters"] = {{"full_attention", full},
                               {"sliding_attention", config.contains("sliding_rope_theta") ? sliding : full}};
  config.erase("rope_theta");
  config.erase("rope_scaling");
}

// Describes a model of Gemma 2 or 3. transformers fixes its embedding multiplier, and allows only 1 / sqrt(integer) as
// its attention multiplier.
ModelDescription describe_gemma(Json config, Architecture architecture, const std::string& where) {
  config["query_pre_attn_scalar"] = nullptr;
  if (config["attention_multiplier"].is_number()) {
    const auto multiplier = config["attention_multiplier"].get<double>();
    const double exact = 1 / (multiplier * multiplier), whole = std::round(exact);
    if (whole < 1 || whole > 0x1p20 || std::abs(exact - whole) > 1e-6 * exact) {
      throw UserError(concat(where, ": attention_multiplier of a model of ", to_string(architecture),
                             " is one over the root of a whole number, got ", multiplier));
    }
    config["query_pre_attn_scalar"] = static_cast<int64_t>(whole);
  }
  const ModelDescription model = parse_model_description(config.dump(), where);
  const double given = config.value("embedding_multiplier", model.embedding_multiplier);
  if (std::abs(given / model.embedding_multiplier - 1) > 1e-6) {
    throw UserError(concat(where, ": embedding_multiplier of a model of ", to_string(architecture),
                           " is the root of hidden_size, ", model.embedding_multiplier, ", got ", given,
                           "; leave it out"));
  }
  return model;
}

// Returns whether only architecture "copus" lets the user choose this property of a model; all others fix it.
bool is_part(const std::string& field) { return architectures_with(field) == std::vector{Architecture::copus}; }

// Refuses properties in the section that the architecture does not have.
void check_parts(const Setting& table, const ModelDescription& model) {
  RunConfig run;
  run.model = model;
  for (const WrittenField& written : write_fields(run)) {
    const bool is_of_model = written.section == "model" && is_part(written.key);
    const Setting* given = is_of_model ? table.find(written.key) : nullptr;
    if (given == nullptr || to_json(*given).dump() == written.value) continue;
    throw UserError(concat(given->origin, ": a model of ", to_string(model.architecture), " has ", written.key, " = ",
                           written.value, "; architecture = \"copus\" combines all parts freely"));
  }
}

// Refuses a model that transformers would train with dropout, unless dropout is ignored.
ModelDescription describe(const ModelText& config, bool ignores_dropout) {
  ModelDescription model = parse_model_description(config.text, config.source);
  const std::string dropout = dropout_in(config.text, config.source);
  if (dropout.empty() || ignores_dropout) return model;
  throw UserError(concat(config.source, ": ", dropout, ", but Copus trains without dropout; set model.",
                         model_ignore_dropout_key, " = true to train this model without it"));
}

ModelDescription describe_file(const std::filesystem::path& path, const std::string& asked_by, bool ignores_dropout) {
  return describe({read_named_file(path, asked_by, "a Hugging Face config.json"), path.string()}, ignores_dropout);
}

// Describes the first difference between two models; "" if they are equal.
std::string difference(const ModelDescription& here, const ModelDescription& there) {
  RunConfig one, other;
  one.model = here;
  other.model = there;
  one.model.rope_scaling = here.rope_scaling.value_or(RopeScaling{});  // gives both lists the same keys
  other.model.rope_scaling = there.rope_scaling.value_or(RopeScaling{});
  const std::vector<WrittenField> fields = write_fields(one);
  const std::vector<WrittenField> other_fields = write_fields(other);
  for (size_t i = 0; i < fields.size(); ++i) {
    if (fields[i].value != other_fields[i].value) {
      return concat(fields[i].key, " is ", fields[i].value, " here and ", other_fields[i].value, " there");
    }
  }
  return here == there ? "" : "rope_scaling is given in one of them alone";
}

}  // namespace

// The section [model] deviates from the defaults of transformers' classes where these would surprise a reader:
// - the number of key/value heads;
// - the head size of Qwen3 and Gemma;
// - Mistral's window;
// - the epsilon of OLMo 2, OLMo 3, Phi-3, GPT-2 and GPT-NeoX;
// - the tied embeddings of SmolLM3, Gemma and GPT-2;
// - the rotary base of SmolLM3, OLMo 3 and Gemma 3;
// - SmolLM3's layers without rotary embeddings;
// - the layer types of OLMo 3 and Gemma;
// - the attention multiplier of Granite and Gemma;
// - Gemma 2's soft-caps;
// - GPT-NeoX's attention biases, parallel residual and rotating fraction.
ModelDescription describe_inline_model(const Setting& table, Architecture architecture, const std::string& where) {
  const ModelDescription defaults;
  Json config = {{"model_type", to_string(architecture)},
                 {"num_key_value_heads", nullptr},
                 {"head_dim", nullptr},
                 {"sliding_window", nullptr},
                 {"attention_multiplier", nullptr},
                 {"attn_logit_softcapping", nullptr},
                 {"final_logit_softcapping", nullptr},
                 {"attention_bias", false},
                 {"use_parallel_residual", false},
                 {"partial_rotary_factor", defaults.partial_rotary_factor},
                 {"rms_norm_eps", defaults.rms_norm_eps},
                 {"rope_theta", defaults.rope_theta},
                 {"no_rope_layer_interval", defaults.no_rope_interval},
                 {"tie_word_embeddings", defaults.tie_word_embeddings}};
  for (const Setting& field : table.children) {
    if (is_part(field.name)) {
      if (architecture == Architecture::copus) config[field.name] = to_json(field);
      continue;
    }
    if (const auto owners = architectures_with(field.name); !owners.empty()) {
      const Json value = to_json(field);
      const bool is_owner = std::ranges::find(owners, architecture) != owners.end();
      if (!is_owner && value != value_without(field.name) && value != false) {
        std::vector<std::string> names;
        for (const Architecture owner : owners) names.emplace_back(to_string(owner));
        throw UserError(concat(field.origin, ": model.", field.name, " belongs to ", join(names, ", "), "; a model of ",
                               to_string(architecture), " has none"));
      }
      if (!is_owner || value == 0 || value == false) continue;  // config.json has no value for an absent property
    }
    if (field.name == "architecture" || field.name == model_init_from_key || field.name == model_ignore_dropout_key) {
      continue;
    }
    config[field.name] = to_json(field);
  }
  // Phi-3's class reads the original context length only here.
  if (const Json scaling = config.value("rope_scaling", Json::object());
      scaling.contains("original_max_position_embeddings")) {
    config["original_max_position_embeddings"] = scaling["original_max_position_embeddings"];
  }
  const auto owns = [&](const char* field) {
    const auto owners = architectures_with(field);
    return std::ranges::find(owners, architecture) != owners.end();
  };
  if (owns("full_attention_interval")) describe_layer_types(config);
  if (owns("sliding_rope_theta") && architecture != Architecture::copus) describe_rope_by_layer_type(config);
  const bool is_gemma = architecture == Architecture::gemma2 || architecture == Architecture::gemma3_text;
  const ModelDescription model =
      is_gemma ? describe_gemma(std::move(config), architecture, where) : parse_model_description(config.dump(), where);
  check_parts(table, model);
  return model;
}

void read_model_section(const Setting& root, const std::string& source, RunConfig& config) {
  const Setting* section = root.find("model");
  const auto describes = [](const Setting& field) { return field.name != model_ignore_dropout_key; };
  if (!section || std::ranges::none_of(section->children, describes)) {
    throw UserError(concat(
        source, ": section [model] is missing: describe the model by config.json's fields, by ",
        "config = \"FILE\" (a config.json) or by init_from = \"DIRECTORY\" (of a Hugging Face model)",
        config.adapt.advise ? "; a file without it is of a job that another program trains and Copus advises" : ""));
  }
  SettingsReader reader(root);
  // Refuses wrong types and ranges with their lines. parse_model_description checks everything else.
  visit_model(config, reader);

  const Setting* file = section->find(model_config_key);
  const Setting* init_from = section->find(model_init_from_key);
  const bool no_init = config.init_from.empty();
  const Setting* inline_field = nullptr;
  for (const Setting& field : section->children) {
    if (&field != file && &field != init_from && describes(field)) inline_field = &field;
  }
  if (file) {
    const Setting* other = inline_field ? inline_field : no_init ? nullptr : init_from;
    if (other) {
      throw UserError(concat(other->origin, ": model.", other->name, " contradicts model.config (", file->origin,
                             "): describe the model in one way"));
    }
    config.model = describe(read_model_text(path_of(*file, "model.config"), concat(file->origin, ": model.config")),
                            config.ignore_dropout);
    return;
  }
  const std::filesystem::path directory_config = std::filesystem::path(config.init_from) / "config.json";
  if (!inline_field) {
    path_of(*init_from, "model.init_from");
    config.model =
        describe_file(directory_config, concat(init_from->origin, ": model.init_from"), config.ignore_dropout);
    return;
  }
  config.model = describe_inline_model(*section, config.model.architecture, concat(section->origin, ": [model]"));
  std::error_code ignored;
  if (no_init || !std::filesystem::exists(directory_config, ignored)) return;
  const ModelDescription theirs =
      describe_file(directory_config, concat(init_from->origin, ": model.init_from"), config.ignore_dropout);
  if (const std::string differs = difference(config.model, theirs); !differs.empty()) {
    throw UserError(concat(inline_field->origin, ": [model] contradicts ", directory_config.string(), ": ", differs,
                           "; leave the fields beside init_from out"));
  }
}

}  // namespace copus
