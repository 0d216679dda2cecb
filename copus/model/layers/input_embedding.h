// The embedding of tokens before the first decoder layer, and of positions if the model has them. With tensor
// parallelism every rank holds a part of the vocabulary and all positions; only the first rank adds the positions.
#pragma once

#include <ATen/core/Tensor.h>

#include "copus/model/layers/tensor_parallel.h"
#include "copus/model/memory/parameters.h"

namespace copus {

class InputEmbedding {
 public:
  InputEmbedding(const ParameterStore& parameters, const TensorParallel& tensor_parallel);

  // Returns the positions of tokens, int64 [batch, sequence], whose sequences begin at position `first`: int64 [batch *
  // sequence]; undefined if positions are not learned.
  at::Tensor positions_from(const at::Tensor& tokens, int64_t first) const;

  // Looks up tokens, int64 [batch, sequence], and positions, int64 [batch * sequence], which are used only if they are
  // learned. Returns the residual stream, [local rows, hidden].
  at::Tensor forward(const at::Tensor& tokens, const at::Tensor& positions) const;

  // Adds to the main gradients. dy: gradient of the stream that forward() returned for these tokens and positions.
  void backward(const at::Tensor& dy, const at::Tensor& tokens, const at::Tensor& positions) const;

 private:
  TensorParallel tensor_parallel_;
  const Parameter& table_;
  const Parameter* positions_;  // null: positions are not learned
  double multiplier_;           // factor on the table's rows
};

}  // namespace copus
