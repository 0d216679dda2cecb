// Makes the JSON files of an exported model. They describe the model. Entries of the original files that Copus itself
// does not use, such as the ids of special tokens, are copied.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "copus/description/model_description.h"

namespace copus {

inline constexpr const char* generation_config_file_name = "generation_config.json";

// The files of a Hugging Face folder that turn text into tokens and control generation, by name, unchanged.
using TokenizerFiles = std::map<std::string, std::string>;

// Files of the folders that a model came from. A missing file is an empty text.
struct ModelOrigin {
  // From the Hugging Face folder of the model itself, or of the model from which training started:
  std::string config = {};             // config.json
  std::string generation_config = {};  // generation_config.json

  TokenizerFiles tokenizer = {};  // possibly from another folder; copied into the export
};

struct ExportedConfig {
  std::string config;             // config.json
  std::string generation_config;  // generation_config.json; empty: there is none, or it is one of the tokenizer's files
  std::vector<std::string> from_config;     // fields whose values come from the origin's config.json
  std::vector<std::string> from_tokenizer;  // fields whose values come from the tokenizer's files
  bool is_of_another_model = false;         // the origin's config.json is of another model: none of its fields is kept
};

// Returns the JSON files of an export of `model` with weights of `torch_dtype` ("bfloat16").
//
// If the origin's config.json describes the same model, its fields are kept, except auto_map, _name_or_path,
// no_rope_layer_interval and the fields that Copus writes itself. Missing token ids come from the tokenizer:
// tokenizer_config.json names the token, and tokenizer.json has the token's id. Ids outside the vocabulary become null.
// If the origin has no generation_config.json, a new one holds the known ids. Invalid contents of these files are
// ignored and cause no exceptions.
ExportedConfig exported_config(const ModelDescription& model, std::string_view torch_dtype, const ModelOrigin& origin);

}  // namespace copus
