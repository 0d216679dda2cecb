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

  // One view per entry of list_parameters(description()), of its shape and of type f32, bf16, f16 or f64. Views stay
  // valid as long as this object lives.
  const std::map<std::string, TensorView, std::less<>>& weights() const { return weights_; }

  // The weight of that name. Throws InternalError when the model has no such parameter.
  const TensorView& weight(std::string_view name) const;

 private:
  friend HuggingFaceModel open_hugging_face(const std::filesystem::path& directory);
  HuggingFaceModel() = default;

  ModelDescription description_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, TensorView, std::less<>> weights_;
};

// Opens a folder. Throws UserError for: a half-written folder, a checkpoint that is damaged (size and checksum of every
// file are checked where there is a manifest), missing files, a config.json that is not supported, a damaged
// safetensors file or index, missing or surplus tensors, wrong shape, a dtype that weights cannot have, and an
// `lm_head.weight` of a tied model whose values are not the embedding's. Ignored: rotary embeddings' `inv_freq`, and an
// `lm_head.weight` with the values of tied embeddings, in any type.
HuggingFaceModel open_hugging_face(const std::filesystem::path& directory);

// Checks that `weights` are exactly the parameters of `model`, as above; `source` names their origin in messages.
// Returns them by name.
std::map<std::string, TensorView, std::less<>> match_parameters(const ModelDescription& model,
                                                                std::span<const TensorView> weights,
                                                                const std::string& source);

// Checks in the same way that `tensors` are exactly those of the model's files, and returns the parameters by name. A
// parameter that the file stores transposed is a copy, and its view keeps that memory.
std::map<std::string, TensorView, std::less<>> read_parameters(const ModelDescription& model,
                                                               std::span<const TensorView> tensors,
                                                               const std::string& source);

// Reads the tokenizer's files of a folder; missing ones are left out. Throws UserError for one that is no regular file,
// or is larger than a text may be.
TokenizerFiles read_tokenizer_files(const std::filesystem::path& directory);

// Reads what an export takes over: from the Hugging Face folder `model` that the model is, or was trained from, and
// from the folder `tokenizer`. Either may be empty: none. Throws as above.
ModelOrigin read_model_origin(const std::filesystem::path& model, const std::filesystem::path& tokenizer);

// Tells whether there is a file that holds a vocabulary.
bool holds_tokenizer(const std::filesystem::path& directory);

// Returns the folder for the files above, of a run: the Hugging Face folder `init_from` that it started from (empty: it
// started from none), unless that holds no tokenizer and tools/tokenize_corpus.py has left one beside the training data
// `data`. Returns nothing where there is neither.
std::optional<std::filesystem::path> find_tokenizer(const std::filesystem::path& init_from, const std::string& data);

// Tells whether there is a tokenizer.json: the file by which `copus generate` turns text into tokens.
bool holds_text_tokenizer(const std::filesystem::path& directory);

// Likewise, for text: of the two folders the first that has this file, or else find_tokenizer's.
std::optional<std::filesystem::path> find_text_tokenizer(const std::filesystem::path& init_from,
                                                         const std::string& data);

inline constexpr int64_t hugging_face_shard_bytes = int64_t{4} << 30;

// Writes a folder that transformers loads, rounding the weights to `dtype` (f32, bf16 or f16), with the files of
// exported_config and the tokenizer's. Returns what exported_config returned. The folder appears whole or not at all;
// `directory` must not exist, or be empty. Needs memory for one shard where weights are converted, and for all weights
// that files of the model fuse or transpose. Throws UserError when
// the folder is not empty, the weights are not the model's, or the disk refuses.
ExportedConfig write_hugging_face(const std::filesystem::path& directory, const ModelDescription& model,
                                  std::span<const TensorView> weights, DType dtype, const ModelOrigin& origin = {},
                                  int64_t shard_bytes = hugging_face_shard_bytes);

}  // namespace copus
