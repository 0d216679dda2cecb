// The tensors of a model's files in transformers' layout. Most architectures store each parameter separately under its
// own name. Others fuse parameters, or store them transposed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "copus/description/model_description.h"

namespace copus {

struct StoredTensor {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<ParameterInfo> parameters;  // several ones are stacked along their outputs
  int64_t outputs_in_turn = 0;            // the stack has so many outputs of each in turn; 0: all of one, then the next
  bool is_transposed = false;             // matrices are [in, out], as in transformers' Conv1D

  // Whether the tensor equals its parameter except for the name.
  bool is_plain() const { return !is_transposed && parameters.size() == 1; }
};

// Lists the tensors in transformers' order. Each parameter is in exactly one of them.
std::vector<StoredTensor> list_stored_tensors(const ModelDescription& model);

// Returns the name of the head's weight in the files of a model, also where it is tied and need not be there.
std::string stored_head_name(const ModelDescription& model);

}  // namespace copus
