// Reads safetensors files by memory map, and writes them durably.
//
// A file is an 8-byte little-endian length N, N bytes of JSON, then the tensors' bytes. The JSON maps each name to
// {"dtype", "shape", "data_offsets": [begin, end]}, offsets counted from the end of the JSON; "__metadata__" maps
// strings to strings. Tensors are row-major, little-endian, and cover the rest of the file without holes or overlaps.
// https://github.com/huggingface/safetensors#format
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "copus/base/error.h"
#include "copus/base/files/durable_file.h"
#include "copus/base/files/mapped_file.h"
#include "copus/base/numbers/dtype.h"

namespace copus {

// A tensor whose bytes are stored elsewhere: row-major, not necessarily aligned to its elements.
struct TensorView {
  std::string name;
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
  std::span<const std::byte> bytes;
  std::shared_ptr<const std::vector<std::byte>> memory = {};  // owns the bytes if they are not in a file

  int64_t num_elements() const;
};

// Formats a shape as "[4, 64]", for messages.
std::string shape_text(std::span<const int64_t> shape);

// Product of `shape`'s dimensions (1 for a scalar). Throws InternalError for negative dimensions or overflow.
int64_t count_elements(std::span<const int64_t> shape);

// Converts a floating-point tensor to floats. Throws UserError for other types.
std::vector<float> to_float(const TensorView& tensor);

// Converts the tensor into the caller's memory for tensor.num_elements() floats.
void to_float(const TensorView& tensor, std::span<float> destination);

// The content of a file is no safetensors.
class InvalidSafetensors : public UserError {
 public:
  using UserError::UserError;
};

// A file that is open for reading. Views are valid as long as this object, or an object moved from it, lives. Pages are
// read from the disk on first use.
class SafetensorsFile {
 public:
  // Checks the whole header. Throws InvalidSafetensors that names the file and the fault, and UserError if the file
  // cannot be read.
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }

  // Tensors in the order of their bytes in the file.
  const std::vector<TensorView>& tensors() const { return tensors_; }

  // Finds a tensor; nullptr if there is none with this name.
  const TensorView* find(std::string_view name) const;

  const std::map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  std::filesystem::path path_;
  MappedFile mapping_;
  std::vector<TensorView> tensors_;
  std::map<std::string, std::string> metadata_;
  std::map<std::string, size_t, std::less<>> index_;
};

// Makes the beginning of a file, which precedes the bytes of `tensors`: the length of the JSON, then the JSON with
// padding that makes the tensors begin at a multiple of 8. Reads only names, types and shapes. Names must be distinct
// (InternalError otherwise).
std::string safetensors_header(std::span<const TensorView> tensors, const std::map<std::string, std::string>& metadata);

// Writes a file atomically and durably; tensors keep their order. Names must be distinct and sizes must match the
// shapes (InternalError otherwise). Throws UserError if the disk fails.
FileDigest write_safetensors(const std::filesystem::path& path, std::span<const TensorView> tensors,
                             const std::map<std::string, std::string>& metadata);

}  // namespace copus
