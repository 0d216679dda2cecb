// The tensors of a model's files as transformers lays them out. Most architectures store each parameter by itself under
// its own name; others fuse parameters, or store them transposed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "copus/description/model_description.h"

namespace copus {

struct StoredTensor {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<ParameterInfo> parameters;  // stacked along their outputs where there are several
  bool is_transposed = false;             // matrices are [in, out], as in transformers' Conv1D

  // Tells whether the tensor is its parameter as it is, but for the name.
  bool is_plain() const { return !is_transposed && parameters.size() == 1; }
};

// Lists the tensors in transformers' order. Each parameter is in exactly one of them.
std::vector<StoredTensor> list_stored_tensors(const ModelDescription& model);

}  // namespace copus
