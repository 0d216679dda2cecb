// The W half of a backward pass: weight gradients of linear layers need only the layer's input and its output
// gradient, so a schedule may run them later than the B half, which passes gradients on (Qi et al. 2023, zero bubble).
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace copus {

class WeightGradients {
 public:
  enum class Mode { immediate, deferred };

  explicit WeightGradients(Mode mode) : mode_(mode) {}
  Mode mode() const { return mode_; }

  // Adds weight_gradient [out, in] += dy^T x, and bias_gradient [out] (may be undefined) += the sum of dy's rows: now,
  // or, when deferred, in run(); dy and x stay alive until then.
  void add(const at::Tensor& weight_gradient, const at::Tensor& bias_gradient, const at::Tensor& dy,
           const at::Tensor& x);

  // Runs the deferred calls in their order, and frees their tensors.
  void run();

 private:
  struct Task {
    at::Tensor weight_gradient, bias_gradient, dy, x;
    void run() const;
  };

  Mode mode_;
  std::vector<Task> tasks_;
};

}  // namespace copus
