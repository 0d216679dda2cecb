#include "copus/checkpoint/shards.h"

#include <iomanip>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <system_error>

#include "copus/base/error.h"
#include "copus/base/text/json_text.h"
#include "copus/checkpoint/checkpoint_files.h"

namespace copus {
namespace {

using Json = nlohmann::json;

uint64_t bytes_as(const TensorView& tensor, DType dtype) {
  return static_cast<uint64_t>(tensor.num_elements() * size_of(dtype));
}

void write_converted(const std::filesystem::path& path, std::span<const TensorView> tensors, DType dtype) {
  std::vector<TensorView> converted(tensors.begin(), tensors.end());
  std::vector<std::vector<std::byte>> buffers;
  for (TensorView& tensor : converted) {
    if (tensor.dtype == dtype) continue;
    buffers.push_back(from_float(to_float(tensor), dtype));
    tensor.dtype = dtype;
    tensor.bytes = buffers.back();
  }
  write_safetensors(path, converted, pytorch_metadata);
}

// Reads the index's map from tensor to file name.
std::map<std::string, std::string> read_index(const std::filesystem::path& path) {
  const std::string text = read_text_file(path);
  const auto fail = [&](const std::string& reason) {
    throw UserError(concat(path.string(), " is not a valid index of safetensors files: ", reason));
  };
  if (nests_too_deeply(text)) fail("it is nested too deeply");
  Json index;
  try {
    index = Json::parse(text);
  } catch (const Json::exception& error) {
    fail(concat("it is not JSON (", error.what(), ")"));
  }
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object() ||
      index["weight_map"].empty()) {
    fail("expected an object \"weight_map\" from tensor to file name");
  }
  std::map<std::string, std::string> files;
  for (const auto& [tensor, file] : index["weight_map"].items()) {
    if (!file.is_string() || !is_plain_file_name(file.get<std::string>())) {
      fail(concat("tensor ", tensor, " lies in ", file.dump(), "; expected the name of a file beside the index"));
    }
    files.emplace(tensor, file.get<std::string>());
  }
  return files;
}

// Checks that every tensor is in the file that the index gives, and in no other.
void check_index(const std::filesystem::path& index_path, const std::map<std::string, std::string>& index,
                 const std::vector<SafetensorsFile>& files) {
  std::map<std::string, std::string> found;
  for (const SafetensorsFile& file : files) {
    const std::string name = file.path().filename().string();
    for (const TensorView& tensor : file.tensors()) {
      const auto [entry, is_new] = found.emplace(tensor.name, name);
      if (!is_new) {
        throw UserError(concat("tensor ", tensor.name, " is both in ", entry->second, " and in ", name, " (",
                               index_path.parent_path().string(), ")"));
      }
    }
  }
  for (const auto& [tensor, file] : index) {
    const auto entry = found.find(tensor);
    if (entry == found.end() || entry->second != file) {
      throw UserError(concat(index_path.string(), " says that tensor ", tensor, " is in ", file, ", but it is ",
                             entry == found.end() ? "in none of the files" : concat("in ", entry->second)));
    }
  }
}

}  // namespace

std::string shard_name(std::string_view stem, size_t index, size_t count) {
  std::ostringstream name;
  name << stem << std::setfill('0') << '-' << std::setw(5) << index + 1 << "-of-" << std::setw(5) << count
       << ".safetensors";
  return name.str();
}

std::string make_model_index(const std::map<std::string, std::string>& file_of_tensor, uint64_t total_bytes) {
  const Json index{{"metadata", {{"total_size", total_bytes}}}, {"weight_map", file_of_tensor}};
  return index.dump(2) + "\n";
}

std::vector<Shard> plan_shards(std::span<const uint64_t> tensor_bytes, int64_t shard_bytes, std::string_view stem) {
  COPUS_CHECK(shard_bytes > 0);
  const auto limit = static_cast<uint64_t>(shard_bytes);
  std::vector<Shard> shards{{"", 0, 0}};
  uint64_t filled = 0;
  for (size_t i = 0; i < tensor_bytes.size(); ++i) {
    if (shards.back().count > 0 && filled + tensor_bytes[i] > limit) {
      shards.push_back({"", i, 0});
      filled = 0;
    }
    filled += tensor_bytes[i];
    ++shards.back().count;
  }
  for (size_t i = 0; i < shards.size(); ++i) shards[i].file_name = shard_name(stem, i, shards.size());
  return shards;
}

void write_model_files(const std::filesystem::path& directory, std::span<const TensorView> weights, DType dtype,
                       int64_t shard_bytes) {
  std::vector<uint64_t> sizes;
  uint64_t total_bytes = 0;
  for (const TensorView& tensor : weights) {
    sizes.push_back(bytes_as(tensor, dtype));
    total_bytes += sizes.back();
  }
  std::vector<Shard> shards = plan_shards(sizes, shard_bytes, "model");
  if (shards.size() == 1) shards.front().file_name = single_model_file_name;

  std::map<std::string, std::string> file_of_tensor;
  for (const Shard& shard : shards) {
    const auto tensors = weights.subspan(shard.first, shard.count);
    write_converted(directory / shard.file_name, tensors, dtype);
    for (const TensorView& tensor : tensors) file_of_tensor[tensor.name] = shard.file_name;
  }
  if (shards.size() > 1) {
    write_file_durably(directory / model_index_file_name, make_model_index(file_of_tensor, total_bytes));
  }
}

std::vector<SafetensorsFile> open_model_files(const std::filesystem::path& directory) {
  std::vector<SafetensorsFile> files;
  // transformers looks for the files in the same order
  if (std::filesystem::exists(directory / single_model_file_name)) {
    files.emplace_back(directory / single_model_file_name);
    return files;
  }
  const std::filesystem::path index_path = directory / model_index_file_name;
  if (!std::filesystem::exists(index_path)) {
    const bool has_pickle = std::filesystem::exists(directory / "pytorch_model.bin") ||
                            std::filesystem::exists(directory / "pytorch_model.bin.index.json");
    throw UserError(concat(directory.string(), " has neither ", single_model_file_name, " nor ", model_index_file_name,
                           has_pickle ? "; it holds pytorch_model.bin: load the model in transformers and save it "
                                        "again, which writes safetensors"
                                      : "; expected a Hugging Face model folder"));
  }
  const std::map<std::string, std::string> index = read_index(index_path);
  std::set<std::string> names;
  for (const auto& [tensor, file] : index) names.insert(file);
  for (const std::string& name : names) {
    std::error_code unknown;  // for example because the name is too long
    if (!std::filesystem::exists(directory / name, unknown)) {
      throw UserError(concat(directory.string(), " is incomplete: ", name, ", which ", model_index_file_name,
                             " names, is missing. Download or copy the model again"));
    }
    files.emplace_back(directory / name);
  }
  check_index(index_path, index, files);
  return files;
}

}  // namespace copus
