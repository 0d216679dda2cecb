// The JSON files of an exported model: they describe the model, and repeat what its origin says that Copus did not need,
// such as the ids of special tokens.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "copus/description/model_description.h"

namespace copus {

inline constexpr const char* generation_config_file_name = "generation_config.json";

// The files of a Hugging Face folder that turn text into tokens and steer generation, by name, as they are.
using TokenizerFiles = std::map<std::string, std::string>;

// Files of the folders that a model came from. An absent file is an empty text.
struct ModelOrigin {
  // From the Hugging Face folder of the model itself, or of the model that training started from:
  std::string config = {};             // config.json
  std::string generation_config = {};  // generation_config.json

  TokenizerFiles tokenizer = {};  // maybe of another folder; copied beside the model
};

struct ExportedConfig {
  std::string config;                    // config.json
  std::string generation_config;         // generation_config.json; empty: none, or it is one of the tokenizer's files
  std::vector<std::string> from_config;  // fields whose values come from the origin's config.json
  std::vector<std::string> from_tokenizer;  // fields whose values come from the tokenizer's files
  bool is_of_another_model = false;         // the origin's config.json describes another model, so nothing is kept
};

// Returns the JSON files of an export of `model` with weights of `torch_dtype` ("bfloat16").
//
// An origin's config.json that describes the same model keeps its fields, except those that Copus writes itself and
// auto_map, _name_or_path and no_rope_layer_interval. Token ids that it does not know come from the tokenizer:
// tokenizer_config.json names the token, tokenizer.json has its id. Ids outside the vocabulary stay null. Without a
// generation_config.json of the origin, a new one holds the known ids. Throws nothing because of what these files hold.
ExportedConfig exported_config(const ModelDescription& model, std::string_view torch_dtype, const ModelOrigin& origin);

}  // namespace copus
