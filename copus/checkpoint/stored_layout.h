// Converts between parameters and the tensors of files that fuse or transpose them (description/stored_tensors.h).
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "copus/checkpoint/safetensors.h"
#include "copus/description/stored_tensors.h"

namespace copus {

// Extracts the parameters from a file's tensor, which has the shape of `stored`. Transposed and interleaved parameters
// are copies; all others are views of the tensor's bytes.
std::vector<TensorView> unpack(const StoredTensor& stored, const TensorView& tensor);

// Combines unsharded parameters of one dtype, in the order of stored.parameters, into a file's tensor. The result is a
// copy, unless the file stores the parameter as it is.
TensorView pack(const StoredTensor& stored, std::span<const TensorView> parameters);

// Finds parameters in a model's files. It keeps only one tensor of the files unpacked at a time.
class StoredParameters {
 public:
  using Find = std::function<const TensorView&(const std::string& name)>;
  // find(name) returns a tensor of the files by its name in the files.
  StoredParameters(const ModelDescription& model, Find find);

  // Returns a parameter, valid until the next call. Throws what `find` throws.
  const TensorView& operator()(const std::string& name);

 private:
  Find find_;
  std::vector<StoredTensor> stored_;
  std::map<std::string, size_t> holder_;  // by parameter: index into stored_
  size_t open_ = 0;
  std::vector<TensorView> unpacked_;  // of stored_[open_]; empty: none
};

}  // namespace copus
