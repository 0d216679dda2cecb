// Cosines and sines of rotary position embeddings (Su et al. 2021), with Llama 3.1's frequency rescaling.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "copus/description/model_description.h"

namespace copus {

// Returns the angle per position of each pair (j, j + head_dim / 2): head_dim / 2 values. They are in single precision,
// as transformers computes them, so that a model gives the same results here and there at every position.
std::vector<float> rotary_frequencies(const ModelDescription& model);

class RotaryTable {
 public:
  RotaryTable(const ModelDescription& model, at::ScalarType dtype, at::Device device);

  // The rows of positions first .. first + count, each [count, head_dim / 2] in the table's dtype. The table grows on
  // demand.
  struct Rows {
    at::Tensor cosine, sine;
  };
  Rows rows(int64_t first, int64_t count);

 private:
  void grow(int64_t length);

  std::vector<float> frequencies_;
  at::ScalarType dtype_;
  at::Device device_;
  at::Tensor cosine_, sine_;
};

}  // namespace copus
