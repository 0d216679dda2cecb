#include "copus/checkpoint/hugging_face.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <system_error>

#include "copus/base/error.h"
#include "copus/base/files/path_pattern.h"
#include "copus/base/text/units.h"
#include "copus/checkpoint/checkpoint_files.h"
#include "copus/checkpoint/manifest.h"
#include "copus/checkpoint/shards.h"
#include "copus/checkpoint/stored_layout.h"

namespace copus {
namespace {

constexpr std::array tokenizer_file_names = {"tokenizer.json",    "tokenizer_config.json", "special_tokens_map.json",
                                             "added_tokens.json", "tokenizer.model",       "vocab.json",
                                             "merges.txt",        "chat_template.jinja",   generation_config_file_name};

// Whether there is an entry with this name. A dangling link is an entry too, and is refused when it is read.
bool is_there(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::exists(std::filesystem::symlink_status(path, ignored));
}

// Lists names as "a, b, c and 4 more".
std::string list_names(const std::vector<std::string>& names) {
  constexpr size_t shown = 3;
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), shown); ++i) text += concat(i == 0 ? "" : ", ", names[i]);
  if (names.size() > shown) text += concat(" and ", names.size() - shown, " more");
  return text;
}

// Returns whether a tensor is a buffer that older versions of transformers saved, although config.json determines it:
// the frequencies of rotary embeddings, and the masks of GPT-2 and GPT-NeoX.
bool is_derived_buffer(std::string_view name) {
  return name.ends_with("rotary_emb.inv_freq") || name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") ||
         name.ends_with(".attention.bias") || name.ends_with(".attention.masked_bias");
}

void check_tensor(const TensorView& tensor, const std::vector<int64_t>& shape, const std::string& source) {
  if (tensor.shape != shape) {
    throw UserError(concat(source, ": tensor ", tensor.name, " has the shape ", shape_text(tensor.shape),
                           "; the model's config.json asks for ", shape_text(shape)));
  }
  if (!is_floating_point(tensor.dtype)) {
    throw UserError(concat(source, ": tensor ", tensor.name, " has the dtype ", printed_name(tensor.dtype),
                           "; expected fp32, bf16, fp16 or fp64 (quantised models are not supported)"));
  }
}

// Compares two tensors of one shape as floats, so that their types may differ. NaN equals NaN.
bool have_equal_values(const TensorView& a, const TensorView& b) {
  if (a.dtype == b.dtype && std::ranges::equal(a.bytes, b.bytes)) return true;
  const auto is_equal = [](float x, float y) { return x == y || (std::isnan(x) && std::isnan(y)); };
  constexpr int64_t elements_at_once = 1 << 16;  // an embedding may be larger than the available memory
  std::vector<float> values_of_a(elements_at_once), values_of_b(elements_at_once);
  for (int64_t begin = 0; begin < a.num_elements(); begin += elements_at_once) {
    const int64_t count = std::min(elements_at_once, a.num_elements() - begin);
    const auto floats = [&](const TensorView& tensor, std::vector<float>& values) {
      const int64_t size = size_of(tensor.dtype);
      const std::span<float> piece(values.data(), static_cast<size_t>(count));
      to_float(tensor.dtype, tensor.bytes.subspan(begin * size, count * size), piece);
      return piece;
    };
    if (!std::ranges::equal(floats(a, values_of_a), floats(b, values_of_b), is_equal)) return false;
  }
  return true;
}

// Throws UserError unless a tied model's head is a copy of its embedding.
void check_tied_head(const TensorView& head, const TensorView& embedding, const std::string& source) {
  check_tensor(head, embedding.shape, source);
  if (have_equal_values(head, embedding)) return;
  throw UserError(concat(source, ": \"tie_word_embeddings\" is true, but ", head.name, " has other values than ",
                         embedding.name, "; write \"tie_word_embeddings\": false in ", model_config_file_name,
                         " to keep both, or delete ", head.name));
}

// Removes a trailing slash: "models/exported/" names the same folder as "models/exported".
std::filesystem::path without_trailing_slash(const std::filesystem::path& directory) {
  return directory.has_filename() ? directory : directory.parent_path();
}

// Throws UserError if the folder is an incomplete or damaged checkpoint. A complete checkpoint is also a Hugging Face
// model, so it is accepted.
void check_if_checkpoint(const std::filesystem::path& directory) {
  if (std::filesystem::exists(directory / manifest_file_name)) {
    verify_files(directory, read_manifest(directory));
    return;
  }
  const bool is_partial = without_trailing_slash(directory).extension() == partial_suffix;
  if (is_partial || std::filesystem::exists(directory / training_state_file_name)) {
    throw UserError(concat(directory.string(), " is a half-written checkpoint or model (it has no ", manifest_file_name,
                           "); use another one"));
  }
}

// Checks that `weights` are exactly the `expected` tensors, the first of which is the embedding. `tied_head`: the name
// under which a tied model may also store its head; empty if the model is not tied.
template <class Expected>
std::map<std::string, TensorView, std::less<>> match_tensors(const std::vector<Expected>& expected,
                                                             const std::string& tied_head,
                                                             std::span<const TensorView> weights,
                                                             const std::string& source) {
  std::map<std::string, TensorView, std::less<>> given;
  for (const TensorView& tensor : weights) {
    const bool is_new = given.emplace(tensor.name, tensor).second;
    if (!is_new) throw UserError(concat(source, ": tensor ", tensor.name, " appears twice"));
  }

  std::map<std::string, TensorView, std::less<>> matched;
  std::vector<std::string> missing;
  for (const Expected& one : expected) {
    const auto found = given.find(one.name);
    if (found == given.end()) {
      missing.push_back(one.name);
      continue;
    }
    check_tensor(found->second, one.shape, source);
    matched.insert(given.extract(found));
  }
  const auto head = given.find(tied_head), embedding = matched.find(expected.front().name);
  if (head != given.end() && embedding != matched.end()) {
    check_tied_head(head->second, embedding->second, source);
    given.erase(head);
  }
  std::erase_if(given, [](const auto& entry) { return is_derived_buffer(entry.first); });

  std::vector<std::string> surplus;
  for (const auto& [name, tensor] : given) surplus.push_back(name);
  if (!missing.empty() || !surplus.empty()) {
    std::string message = concat(source, " does not hold the tensors of its config.json:");
    if (!missing.empty()) message += concat(" ", missing.size(), " missing (", list_names(missing), ")");
    if (!surplus.empty()) {
      message += concat(missing.empty() ? " " : ", ", surplus.size(), " surplus (", list_names(surplus), ")");
    }
    throw UserError(message + ". Is config.json that of these weights?");
  }
  return matched;
}

// Adds the prefix that tensor names lack in files of a model that was saved without its head, such as the published
// GPT-2 files.
std::vector<TensorView> with_prefix(const std::vector<StoredTensor>& stored, const std::string& head_name,
                                    std::span<const TensorView> tensors) {
  std::vector<TensorView> all(tensors.begin(), tensors.end());
  const std::string& first = stored.front().name;
  const std::string base_prefix = first.substr(0, first.find('.') + 1);
  const auto is_prefixed = [&](const TensorView& tensor) { return tensor.name.starts_with(base_prefix); };
  if (std::ranges::any_of(all, is_prefixed)) return all;
  for (TensorView& tensor : all) {
    if (tensor.name != head_name) tensor.name.insert(0, base_prefix);
  }
  return all;
}

}  // namespace

std::map<std::string, TensorView, std::less<>> match_parameters(const ModelDescription& model,
                                                                std::span<const TensorView> weights,
                                                                const std::string& source) {
  return match_tensors(list_parameters(model), model.tie_word_embeddings ? "lm_head.weight" : "", weights, source);
}

std::map<std::string, TensorView, std::less<>> read_parameters(const ModelDescription& model,
                                                               std::span<const TensorView> tensors,
                                                               const std::string& source) {
  const std::vector<StoredTensor> stored = list_stored_tensors(model);
  const bool is_plain = std::ranges::all_of(stored, &StoredTensor::is_plain);
  const auto matched = match_tensors(
      stored, model.tie_word_embeddings ? stored_head_name(model) : "",
      is_plain ? std::vector(tensors.begin(), tensors.end()) : with_prefix(stored, stored_head_name(model), tensors),
      source);
  std::map<std::string, TensorView, std::less<>> parameters;
  for (const StoredTensor& tensor : stored) {
    for (TensorView& parameter : unpack(tensor, matched.at(tensor.name))) {
      std::string name = parameter.name;
      parameters.emplace(std::move(name), std::move(parameter));
    }
  }
  return parameters;
}

const TensorView& HuggingFaceModel::weight(std::string_view name) const {
  const auto found = weights_.find(name);
  COPUS_CHECK(found != weights_.end(), "no parameter ", name);
  return found->second;
}

HuggingFaceModel open_hugging_face(const std::filesystem::path& directory) {
  if (!std::filesystem::is_directory(directory)) {
    throw UserError(concat(directory.string(), " is not a folder; expected a Hugging Face model folder with ",
                           model_config_file_name, " and safetensors"));
  }
  check_if_checkpoint(directory);
  const std::filesystem::path config = directory / model_config_file_name;
  if (!std::filesystem::exists(config)) {
    throw UserError(concat(directory.string(), " has no ", model_config_file_name,
                           "; expected a Hugging Face model folder, with that file and safetensors"));
  }
  HuggingFaceModel model;
  model.description_ = parse_model_description(read_text_file(config), config.string());
  model.files_ = open_model_files(directory);
  std::vector<TensorView> tensors;
  for (const SafetensorsFile& file : model.files_) {
    tensors.insert(tensors.end(), file.tensors().begin(), file.tensors().end());
  }
  model.weights_ = read_parameters(model.description_, tensors, directory.string());
  return model;
}

TokenizerFiles read_tokenizer_files(const std::filesystem::path& directory) {
  TokenizerFiles files;
  for (const char* name : tokenizer_file_names) {
    const std::filesystem::path path = directory / name;
    if (is_there(path)) files.emplace(name, read_text_file(path));
  }
  return files;
}

ModelOrigin read_model_origin(const std::filesystem::path& model, const std::filesystem::path& tokenizer) {
  const auto text_of = [&](const char* name) {
    return !model.empty() && is_there(model / name) ? read_text_file(model / name) : "";
  };
  return {.config = text_of(model_config_file_name),
          .generation_config = text_of(generation_config_file_name),
          .tokenizer = tokenizer.empty() ? TokenizerFiles{} : read_tokenizer_files(tokenizer)};
}

bool holds_tokenizer(const std::filesystem::path& directory) {
  return is_there(directory / "tokenizer.json") || is_there(directory / "tokenizer.model") ||
         is_there(directory / "vocab.json");
}

bool holds_text_tokenizer(const std::filesystem::path& directory) { return is_there(directory / "tokenizer.json"); }

namespace {

// Returns the first of a run's two folders for which `holds` is true: the folder of the model from which the run
// started, then the folder of the tokenizer next to its data.
std::optional<std::filesystem::path> first_that(bool (*holds)(const std::filesystem::path&),
                                                const std::filesystem::path& init_from, const std::string& data) {
  if (!init_from.empty() && holds(init_from)) return init_from;
  const std::filesystem::path beside_data = data + ".tokenizer";
  if (holds(beside_data)) return beside_data;
  if (!is_path_pattern(data)) return std::nullopt;
  // A path with a pattern, for several shards, may end with the suffix of the files.
  const bool names_end = data.ends_with(".bin") || data.ends_with(".idx");
  const std::string shards = names_end ? data.substr(0, data.size() - 4) : data;
  for (const std::filesystem::path beside_shard : matching_paths(shards + ".tokenizer")) {
    if (holds(beside_shard)) return beside_shard;
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::filesystem::path> find_tokenizer(const std::filesystem::path& init_from, const std::string& data) {
  if (auto found = first_that(holds_tokenizer, init_from, data)) return found;
  return init_from.empty() ? std::nullopt : std::optional(init_from);
}

std::optional<std::filesystem::path> find_text_tokenizer(const std::filesystem::path& init_from,
                                                         const std::string& data) {
  if (auto found = first_that(holds_text_tokenizer, init_from, data)) return found;
  return find_tokenizer(init_from, data);
}

namespace {

// Throws UserError if finite weights would become infinite in `dtype`.
void check_range(std::span<const TensorView> weights, DType dtype) {
  int64_t beyond = 0;
  float largest = 0;
  std::string where;
  for (const TensorView& tensor : weights) {
    for (const float value : to_float(tensor)) {
      if (!std::isfinite(value)) continue;
      const bool is_beyond = std::isinf(dtype == DType::f16    ? f16_to_float(float_to_f16(value))
                                        : dtype == DType::bf16 ? bf16_to_float(float_to_bf16(value))
                                                               : value);
      if (!is_beyond) continue;
      if (++beyond == 1) where = tensor.name;
      largest = std::max(largest, std::abs(value));
    }
  }
  if (beyond == 0) return;
  throw UserError(concat(counted(beyond, "weight"), " would become infinite in ", printed_name(dtype),
                         ", the first in ", where, ", the largest ", largest,
                         dtype == DType::f16 ? "; write bf16 or fp32" : "; write fp32", ", which hold them"));
}

}  // namespace

ExportedConfig write_hugging_face(const std::filesystem::path& directory, const ModelDescription& model,
                                  std::span<const TensorView> weights, DType dtype, const ModelOrigin& origin,
                                  int64_t shard_bytes) {
  COPUS_CHECK(dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16, torch_name(dtype));
  const std::filesystem::path target = without_trailing_slash(directory);
  if (std::filesystem::exists(target) &&
      !(std::filesystem::is_directory(target) && std::filesystem::is_empty(target))) {
    throw UserError(concat(target.string(),
                           " exists and is not an empty folder; a model is only written to a new one. "
                           "Choose another name or delete it"));
  }
  const auto matched = match_parameters(model, weights, "the model to write");
  std::vector<TensorView> ordered;
  for (const StoredTensor& stored : list_stored_tensors(model)) {
    std::vector<TensorView> parameters;
    for (const ParameterInfo& parameter : stored.parameters) parameters.push_back(matched.at(parameter.name));
    ordered.push_back(pack(stored, parameters));
  }
  if (dtype != DType::f32) check_range(ordered, dtype);

  ExportedConfig config = exported_config(model, torch_name(dtype), origin);
  std::map<std::string, std::string_view> texts(origin.tokenizer.begin(), origin.tokenizer.end());
  texts.emplace(model_config_file_name, config.config);
  if (!config.generation_config.empty()) texts.emplace(generation_config_file_name, config.generation_config);
  auto expected_bytes = static_cast<uint64_t>(count_parameters(model) * size_of(dtype));
  for (const auto& [name, content] : texts) expected_bytes += content.size();
  write_directory_durably(target, expected_bytes, [&](const std::filesystem::path& partial) {
    for (const auto& [name, content] : texts) write_file_durably(partial / name, content);
    write_model_files(partial, ordered, dtype, shard_bytes);
  });
  return config;
}

}  // namespace copus
