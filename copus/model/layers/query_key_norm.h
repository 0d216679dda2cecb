// RMSNorm of queries and keys before their rotation, over each head or over whole projections (QkNorm).
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "copus/model/kernels/kernels.h"
#include "copus/model/layers/tensor_parallel.h"
#include "copus/model/layers/weight_gradients.h"
#include "copus/model/memory/parameters.h"

namespace copus {

class QueryKeyNorm {
 public:
  // Takes the weights of the layer whose attention parameters begin with `prefix`.
  QueryKeyNorm(const ParameterStore& parameters, const std::string& prefix, const TensorParallel& tensor_parallel);

  bool is_there() const { return kind_ != QkNorm::none; }

  // Returns the sums over all ranks' heads that forward and backward_ need. For norms of whole projections these are
  // each row's sums of squares, [rows, 2]; otherwise the result is undefined. A collective of the tensor-parallel
  // ranks.
  at::Tensor statistics(const at::Tensor& qkv, const kernels::AttentionShape& shape) const;

  // Returns `qkv` with normalised queries and keys; `qkv` itself where there is no norm.
  at::Tensor forward(const at::Tensor& qkv, const kernels::AttentionShape& shape, const at::Tensor& statistics) const;

  // Overwrites the gradient of forward's result with the gradient of `qkv`. Also a collective.
  void backward_(const at::Tensor& gradient, const at::Tensor& qkv, const kernels::AttentionShape& shape,
                 const at::Tensor& statistics, WeightGradients& weight_gradients) const;

 private:
  // Returns the norm with its effective weights, which multiply the normalised values.
  kernels::ProjectionNorm norm() const;
  // Zeroes the sums over keys on all ranks but the first of those that hold the same key heads.
  void leave_keys_to_first_replica(const at::Tensor& sums) const;

  TensorParallel tensor_parallel_;
  QkNorm kind_;
  kernels::ProjectionNorm norm_;  // for norms of heads only weights and epsilon
  bool adds_one_;
  at::Tensor query_gradient_, key_gradient_;
  bool counts_keys_;
};

}  // namespace copus
