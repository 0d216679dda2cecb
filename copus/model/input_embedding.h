// The embedding before the first decoder layer: of tokens, plus optionally of positions. With tensor parallelism every
// rank holds a part of the vocabulary and all positions, and only the first rank adds the positions.
#pragma once

#include <ATen/core/Tensor.h>

#include "copus/model/parameters.h"
#include "copus/model/tensor_parallel.h"

namespace copus {

class InputEmbedding {
 public:
  InputEmbedding(const ParameterStore& parameters, const TensorParallel& tensor_parallel);

  // Looks up tokens, int64 [batch, sequence]. positions: as MicroBatch::positions(). Returns the residual stream,
  // [local rows, hidden].
  at::Tensor forward(const at::Tensor& tokens, const at::Tensor& positions) const;
  // Does so for the continuation of one document, whose first token here has the position `first`.
  at::Tensor forward_from(const at::Tensor& tokens, int64_t first) const;

  // Adds to the main gradients. dy: the gradient of the stream that forward() returned.
  void backward(const at::Tensor& dy, const at::Tensor& tokens, const at::Tensor& positions) const;

 private:
  at::Tensor look_up(const at::Tensor& tokens, const at::Tensor& positions) const;
  // Returns the position of each row, int64 [batch * sequence]; undefined where positions are not learned.
  at::Tensor positions_of(const at::Tensor& tokens, int64_t first) const;

  TensorParallel tensor_parallel_;
  const Parameter& table_;
  const Parameter* positions_;  // null: positions are not learned
  double multiplier_;           // of the table's rows
};

}  // namespace copus
