// The embedding in front of the first decoder layer. With tensor parallelism every rank holds a part of the vocabulary.
#pragma once

#include <ATen/core/Tensor.h>

#include "copus/model/parameters.h"
#include "copus/model/tensor_parallel.h"

namespace copus {

class InputEmbedding {
 public:
  InputEmbedding(const ParameterStore& parameters, const TensorParallel& tensor_parallel);

  // Looks up tokens, int64 [rows]. Returns the residual stream, [local rows, hidden].
  at::Tensor forward(const at::Tensor& tokens) const;

  // Adds to the main gradient. dy: the gradient of the stream that forward() returned.
  void backward(const at::Tensor& dy, const at::Tensor& tokens) const;

 private:
  TensorParallel tensor_parallel_;
  const Parameter& table_;
};

}  // namespace copus
