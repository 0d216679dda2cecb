// Models in Hugging Face's folder format: config.json and safetensors, one file or several with an index.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "copus/checkpoint/exported_config.h"
#include "copus/checkpoint/safetensors.h"
#include "copus/description/model_description.h"

namespace copus {

// A model on disk that has been checked to hold exactly the parameters of its description.
class HuggingFaceModel {
 public:
  const ModelDescription& description() const { return description_; }

  // One view per entry of list_parameters(description()). A view has the entry's shape and the type f32, bf16, f16 or
  // f64. Views are valid as long as this object lives.
  const std::map<std::string, TensorView, std::less<>>& weights() const { return weights_; }

  // The weight with this name. Throws InternalError if the model has no such parameter.
  const TensorView& weight(std::string_view name) const;

 private:
  friend HuggingFaceModel open_hugging_face(const std::filesystem::path& directory);
  HuggingFaceModel() = default;

  ModelDescription description_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, TensorView, std::less<>> weights_;
};

// Opens a folder. If it has a checkpoint's manifest, checks the size and checksum of every file. Throws UserError for
// an unfinished folder, a damaged checkpoint, missing files, an unsupported config.json, a damaged safetensors file or
// index, missing or surplus tensors, wrong shapes, types that weights cannot have, and an `lm_head.weight` of a tied
// model whose values differ from the embedding's. Ignores rotary embeddings' `inv_freq`, and an `lm_head.weight` with
// the values of tied embeddings, in any type.
HuggingFaceModel open_hugging_face(const std::filesystem::path& directory);

// Checks that `weights` are exactly the parameters of `model`, as open_hugging_face does. Returns them by name.
// `source` names the origin of the weights in messages.
std::map<std::string, TensorView, std::less<>> match_parameters(const ModelDescription& model,
                                                                std::span<const TensorView> weights,
                                                                const std::string& source);

// Like match_parameters, for tensors in the form of the model's files: checks that `tensors` are exactly the tensors of
// such files, and returns the parameters by name. If the files store a parameter transposed, the result is a copy, and
// its view keeps the memory alive.
std::map<std::string, TensorView, std::less<>> read_parameters(const ModelDescription& model,
                                                               std::span<const TensorView> tensors,
                                                               const std::string& source);

// Reads the tokenizer files of a folder; missing files are skipped. Throws UserError for a file that is not regular, or
// is too large for a text.
TokenizerFiles read_tokenizer_files(const std::filesystem::path& directory);

// Reads the files that an export copies from two folders. `model` is the Hugging Face folder of the model itself, or of
// the model from which training started. `tokenizer` is the folder of the tokenizer. Either path may be empty. Throws
// as read_tokenizer_files() does.
ModelOrigin read_model_origin(const std::filesystem::path& model, const std::filesystem::path& tokenizer);

// Whether the folder has a file with a vocabulary.
bool holds_tokenizer(const std::filesystem::path& directory);

// Returns the folder of a run's tokenizer files; empty if there is none. This is `init_from`, the Hugging Face folder
// from which the run started (empty: none), if it has a tokenizer. Otherwise it is the folder that
// tools/tokenize_corpus.py wrote next to the training data `data`.
std::optional<std::filesystem::path> find_tokenizer(const std::filesystem::path& init_from, const std::string& data);

// Whether there is a tokenizer.json, which `copus generate` needs to turn text into tokens.
bool holds_text_tokenizer(const std::filesystem::path& directory);

// Returns the first of these two folders that has a tokenizer.json, otherwise the result of find_tokenizer.
std::optional<std::filesystem::path> find_text_tokenizer(const std::filesystem::path& init_from,
                                                         const std::string& data);

inline constexpr int64_t hugging_face_shard_bytes = int64_t{4} << 30;

// Writes a folder that transformers loads, and returns the result of exported_config. The folder appears completely or
// not at all; `directory` must not exist or must be empty. It holds the weights, rounded to `dtype` (f32, bf16 or f16),
// and the files of exported_config and of the tokenizer. Needs memory for one shard if weights are converted to another
// type, and for all weights that the model's files store fused or transposed. Throws UserError if the folder is not
// empty, the weights are not the model's, or the disk fails.
ExportedConfig write_hugging_face(const std::filesystem::path& directory, const ModelDescription& model,
                                  std::span<const TensorView> weights, DType dtype, const ModelOrigin& origin = {},
                                  int64_t shard_bytes = hugging_face_shard_bytes);

}  // namespace copus
