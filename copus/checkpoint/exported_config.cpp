#include "copus/checkpoint/exported_config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "copus/base/error.h"
#include "copus/base/text/json_text.h"
#include "copus/checkpoint/checkpoint_files.h"

namespace copus {
namespace {

using Json = nlohmann::json;

struct SpecialToken {
  const char* token;  // in tokenizer_config.json
  const char* id;     // in config.json
  bool may_be_list;   // whether transformers accepts a list
};

constexpr std::array special_tokens = {
    SpecialToken{"bos_token", "bos_token_id", false},
    SpecialToken{"eos_token", "eos_token_id", true},
    SpecialToken{"pad_token", "pad_token_id", false},
};

// Fields that an export leaves out. `auto_map` and `_name_or_path` name code and weights outside the export.
// `no_rope_layer_interval` is left out because an export lists the layers instead.
constexpr std::array dropped_fields = {"auto_map", "_name_or_path", "no_rope_layer_interval"};

// Fields that transformers requires to be integers.
constexpr std::array integer_fields = {"sliding_window", "max_window_layers"};

// Returns a field; null if `value` is not an object or has no such field.
const Json& field_of(const Json& value, const std::string& name) {
  static const Json none;
  if (!value.is_object()) return none;
  const auto found = value.find(name);
  return found == value.end() ? none : *found;
}

bool is_text(const Json& value, const std::string& text) {
  return value.is_string() && value.get_ref<const std::string&>() == text;
}

// Whether a value is a whole number from 0 to limit - 1. Some tools write it as a float: 2.0.
bool is_whole(const Json& value, int64_t limit) {
  if (!value.is_number()) return false;
  const auto number = value.get<double>();
  return number >= 0 && number < static_cast<double>(limit) && number == std::trunc(number);
}

// Returns an id of the vocabulary, or a list of such ids, as integers; null if there is none.
Json known_id(const Json& value, const SpecialToken& token, int64_t vocab_size) {
  if (is_whole(value, vocab_size)) return value.get<int64_t>();
  if (!value.is_array() || !token.may_be_list) return nullptr;
  Json ids = Json::array();
  for (const Json& each : value) {
    if (is_whole(each, vocab_size)) ids.push_back(each.get<int64_t>());
  }
  return ids.empty() ? Json(nullptr) : ids;
}

bool describes(const std::string& config, const ModelDescription& model) {
  try {
    return parse_model_description(config, model_config_file_name) == model;
  } catch (const UserError&) {
    return false;
  }
}

Json parse_file(const TokenizerFiles& files, const char* name) {
  const auto file = files.find(name);
  return file == files.end() ? Json() : parse_json(file->second);
}

// Returns the id of a token in a tokenizer.json; null if the token is unknown.
Json id_in_tokenizer(const Json& tokenizer, const std::string& token) {
  for (const Json& added : field_of(tokenizer, "added_tokens")) {
    if (is_text(field_of(added, "content"), token)) return field_of(added, "id");
  }
  const Json& vocabulary = field_of(field_of(tokenizer, "model"), "vocab");
  if (!vocabulary.is_array()) return field_of(vocabulary, token);
  for (size_t id = 0; id < vocabulary.size(); ++id) {  // Unigram: [piece, score]
    const Json& entry = vocabulary[id];
    if (entry.is_array() && !entry.empty() && is_text(entry.front(), token)) return id;
  }
  return nullptr;
}

// Adds the token ids that are missing in config.json and that follow from the tokenizer's files. Returns the names of
// the added fields.
std::vector<std::string> add_ids_of_tokenizer(Json& config, const TokenizerFiles& files, int64_t vocab_size) {
  std::vector<std::string> added;
  const Json tokenizer_config = parse_file(files, "tokenizer_config.json");
  std::optional<Json> tokenizer;  // a large file, so it is parsed only if an id is needed
  for (const SpecialToken& special : special_tokens) {
    if (!config[special.id].is_null()) continue;
    const Json& token = field_of(tokenizer_config, special.token);
    const Json& content = token.is_object() ? field_of(token, "content") : token;
    if (!content.is_string()) continue;
    if (!tokenizer) tokenizer = parse_file(files, "tokenizer.json");
    config[special.id] = known_id(id_in_tokenizer(*tokenizer, content.get<std::string>()), special, vocab_size);
    if (!config[special.id].is_null()) added.emplace_back(special.id);
  }
  return added;
}

// Adds to the new config.json those fields of the origin's config.json that it does not have. Returns the names of the
// added fields.
std::vector<std::string> add_fields_of_origin(Json& config, Json origin, int64_t vocab_size) {
  std::vector<std::string> added;
  for (const char* name : dropped_fields) origin.erase(name);
  for (const SpecialToken& special : special_tokens) {
    const Json id = known_id(field_of(origin, special.id), special, vocab_size);
    origin.erase(special.id);
    if (id.is_null() || !config[special.id].is_null()) continue;
    config[special.id] = id;
    added.emplace_back(special.id);
  }
  for (const auto& [name, value] : origin.items()) {
    if (config.contains(name) || value.is_null()) continue;
    const bool is_integer = std::ranges::find(integer_fields, name) != integer_fields.end() &&
                            is_whole(value, std::numeric_limits<int32_t>::max());
    config[name] = is_integer ? Json(value.get<int64_t>()) : value;
    added.push_back(name);
  }
  return added;
}

// Includes transformers' marker for a file that contains nothing beyond config.json.
std::string generation_config_of(const Json& config) {
  Json generation = {{"_from_model_config", true}};
  for (const SpecialToken& special : special_tokens) {
    if (!config.at(special.id).is_null()) generation[special.id] = config.at(special.id);
  }
  return generation.size() == 1 ? "" : json_text(generation, 2) + "\n";
}

}  // namespace

ExportedConfig exported_config(const ModelDescription& model, std::string_view torch_dtype, const ModelOrigin& origin) {
  ExportedConfig exported;
  Json config = parse_json(to_hugging_face_config(model, torch_dtype));
  if (!origin.config.empty()) {
    exported.is_of_another_model = !describes(origin.config, model);
    if (!exported.is_of_another_model) {
      exported.from_config = add_fields_of_origin(config, parse_json(origin.config), model.vocab_size);
    }
  }
  exported.from_tokenizer = add_ids_of_tokenizer(config, origin.tokenizer, model.vocab_size);
  exported.config = json_text(config, 2) + "\n";
  if (!origin.tokenizer.contains(generation_config_file_name)) {
    const bool has_own = !origin.generation_config.empty() && !exported.is_of_another_model;
    exported.generation_config = has_own ? origin.generation_config : generation_config_of(config);
  }
  return exported;
}

}  // namespace copus
