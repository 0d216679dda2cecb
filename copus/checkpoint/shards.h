// Distributes many tensors over several safetensors files, and writes and reads the index that lists them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "copus/checkpoint/safetensors.h"

namespace copus {

// The tensors of one file: `count` of them, from `first` on.
struct Shard {
  std::string file_name;
  size_t first;
  size_t count;
};

// Names of a single file of weights, and of the index of several.
inline constexpr const char* single_model_file_name = "model.safetensors";
inline constexpr const char* model_index_file_name = "model.safetensors.index.json";

// Metadata that transformers requires in a file of weights: tensors have PyTorch's layout.
inline const std::map<std::string, std::string> pytorch_metadata{{"format", "pt"}};

// Makes "<stem>-00002-of-00007.safetensors" for `index` 1 of 7 files.
std::string shard_name(std::string_view stem, size_t index, size_t count);

// Makes the index's text: the file of each tensor, and the bytes of all tensors.
std::string make_model_index(const std::map<std::string, std::string>& file_of_tensor, uint64_t total_bytes);

// Distributes tensors of these sizes, in order, over files "<stem>-00001-of-0000N.safetensors". A file has at most
// `shard_bytes`, or a single larger tensor. There is at least one shard, even without tensors.
std::vector<Shard> plan_shards(std::span<const uint64_t> tensor_bytes, int64_t shard_bytes, std::string_view stem);

// Writes weights into `directory` as Hugging Face does: model.safetensors, or the shards of "model" and
// model.safetensors.index.json. `dtype` is f32, bf16 or f16; floats are rounded to this type, shard by shard.
void write_model_files(const std::filesystem::path& directory, std::span<const TensorView> weights, DType dtype,
                       int64_t shard_bytes);

// Opens the safetensors files of a model in `directory`: model.safetensors, or the files that the index names. Throws
// UserError if neither exists, a file is missing or damaged, or index and files disagree.
std::vector<SafetensorsFile> open_model_files(const std::filesystem::path& directory);

}  // namespace copus
