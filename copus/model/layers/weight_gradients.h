// The W half of a backward pass. Weight gradients of linear layers need only the layer's input and its output gradient,
// so a schedule may run them later than the B half, which passes gradients on (Qi et al. 2023, zero bubble).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "copus/model/bucket_use.h"

namespace copus {

class WeightGradients {
 public:
  // deferred: run() adds the gradients of linear layers, while norms' gradients are added at once. all_deferred: run()
  // adds norms' gradients too, so no gradient of a layer exists before run().
  enum class Mode { immediate, deferred, all_deferred };

  explicit WeightGradients(Mode mode) : mode_(mode) {}
  Mode mode() const { return mode_; }

  // Names the bucket of the gradients added from now on.
  void begin_bucket(int64_t bucket) { bucket_ = bucket; }

  // Adds weight_gradient [out, in] += dy^T x, and bias_gradient [out] (may be undefined) += the sum of dy's rows. If
  // deferred, run() adds them, and dy and x stay alive until then.
  void add(const at::Tensor& weight_gradient, const at::Tensor& bias_gradient, const at::Tensor& dy,
           const at::Tensor& x);

  // Returns a vector to which to add a norm's gradient: `gradient` itself, or one that run() adds to it.
  at::Tensor add_norm(const at::Tensor& gradient);

  // Runs the deferred calls in their order and frees their tensors. With all_deferred, reports the gradient of each
  // bucket to `use`, if given.
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
