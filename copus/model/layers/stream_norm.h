// A norm of the residual stream's rows: RMSNorm, or LayerNorm with a bias (NormKind).
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "copus/model/kernels/kernels.h"
#include "copus/model/layers/weight_gradients.h"
#include "copus/model/memory/parameters.h"

namespace copus {

class StreamNorm {
 public:
  // Uses the weights of the module with this name.
  StreamNorm(const ParameterStore& parameters, const std::string& module);

  // Normalises residual + delta, [rows, hidden]; delta may be undefined.
  kernels::NormResult forward(const at::Tensor& residual, const at::Tensor& delta) const;

  // Returns residual_gradient (may be undefined) + the gradient of the input. `statistics` is what forward() returned
  // for this input.
  at::Tensor backward(const at::Tensor& dy, const at::Tensor& input, const at::Tensor& statistics,
                      const at::Tensor& residual_gradient, WeightGradients& weight_gradients) const;

 private:
  at::Tensor weight() const { return adds_one_ ? kernels::add_one(weight_) : weight_; }

  double epsilon_;
  bool adds_one_;
  at::Tensor weight_, weight_gradient_;
  at::Tensor bias_, bias_gradient_;  // undefined without one
};

}  // namespace copus
