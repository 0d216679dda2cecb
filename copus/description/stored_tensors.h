// The tensors of a model's files in transformers' layout. Most architectures store each parameter under its own name;
// some fuse or transpose parameters.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "copus/description/model_description.h"

namespace copus {

struct StoredTensor {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<ParameterInfo> parameters;  // several are stacked along their outputs
  int64_t outputs_in_turn = 0;            // stacks so many outputs of each parameter in turn; 0: entire parameters
  bool is_transposed = false;             // whether matrices are [in, out], as in transformers' Conv1D

  // Returns whether the tensor is one parameter as it is, up to its name.
  bool is_plain() const { return !is_transposed && parameters.size() == 1; }
};

// Lists the tensors in transformers' order. Each parameter is in exactly one tensor.
std::vector<StoredTensor> list_stored_tensors(const ModelDescription& model);

// Returns the stored name of the head's weight. A tied head has a name too, but files need not contain it.
std::string stored_head_name(const ModelDescription& model);

}  // namespace copus
