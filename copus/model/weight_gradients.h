// The W half of a backward pass: weight gradients of linear layers need only the layer's input and its output
// gradient, so a schedule may run them later than the B half, which passes gradients on (Qi et al. 2023, zero bubble).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "copus/model/bucket_use.h"

namespace copus {

class WeightGradients {
 public:
  // deferred: linear layers' gradients are left to run(), those of norms are added at once; all_deferred: these are
  // left to run() as well, so that no gradient of a layer exists before it.
  enum class Mode { immediate, deferred, all_deferred };

  explicit WeightGradients(Mode mode) : mode_(mode) {}
  Mode mode() const { return mode_; }

  // Names the bucket of the gradients that are added from now on.
  void begin_bucket(int64_t bucket) { bucket_ = bucket; }

  // Adds weight_gradient [out, in] += dy^T x, and bias_gradient [out] (may be undefined) += the sum of dy's rows: now,
  // or, when deferred, in run(); dy and x stay alive until then.
  void add(const at::Tensor& weight_gradient, const at::Tensor& bias_gradient, const at::Tensor& dy,
           const at::Tensor& x);

  // Returns where to add a norm's gradient to `gradient`, a vector: there, or to a vector that run() adds to it.
  at::Tensor add_norm(const at::Tensor& gradient);

  // Runs the deferred calls in their order, and frees their tensors. With all_deferred tells `use`, where given, of the
  // gradient of each bucket in turn.
  void run(BucketUse* use = nullptr);

 private:
  // A linear layer's gradients, or, without `x`, the gradient `dy` of a norm.
  struct Task {
    int64_t bucket;
    at::Tensor weight_gradient, bias_gradient, dy, x;
    void run() const;
  };

  Mode mode_;
  int64_t bucket_ = -1;
  std::vector<Task> tasks_;
};

}  // namespace copus
