// RMSNorm of queries and keys before rotation, over each head or over whole projections (QkNorm).
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
  // Uses the weights of the layer whose attention parameters have this `prefix`.
  QueryKeyNorm(const ParameterStore& parameters, const std::string& prefix, const TensorParallel& tensor_parallel);

  bool is_there() const { return kind_ != QkNorm::none; }

  // Returns what forward and backward_ need from all ranks. For norms over whole projections this is each row's sums of
  // squares over all heads, [rows, 2]; otherwise it is undefined. A collective of the tensor-parallel ranks.
  at::Tensor statistics(const at::Tensor& qkv, const kernels::AttentionShape& shape) const;

  // Returns `qkv` with normalised queries and keys; without norms returns `qkv` itself.
  at::Tensor forward(const at::Tensor& qkv, const kernels::AttentionShape& shape, const at::Tensor& statistics) const;

  // Overwrites the gradient of forward's result with the gradient of `qkv`. A collective of the tensor-parallel ranks.
  void backward_(const at::Tensor& gradient, const at::Tensor& qkv, const kernels::AttentionShape& shape,
                 const at::Tensor& statistics, WeightGradients& weight_gradients) const;

 private:
  // Returns the norm with the weights that actually multiply the normalised values.
  kernels::ProjectionNorm norm() const;
  // Of the ranks that hold the same key heads, zeroes the sums over keys on all but the first.
  void leave_keys_to_first_replica(const at::Tensor& sums) const;

  TensorParallel tensor_parallel_;
  QkNorm kind_;
  kernels::ProjectionNorm norm_;  // of norms over heads only weights and epsilon are used
  bool adds_one_;
  at::Tensor query_gradient_, key_gradient_;
  bool counts_keys_;
};

}  // namespace copus
