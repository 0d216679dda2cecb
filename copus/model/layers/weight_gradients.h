// The W part of a backward pass. A linear layer's weight gradient needs only the layer's input and output gradient, so
// a schedule may compute it later than B, the part that passes gradients to the previous layer (Qi et al. 2023, zero
// bubble).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "copus/model/bucket_use.h"

namespace copus {

class WeightGradients {
 public:
  // immediate: gradients are added at once. deferred: run() adds the gradients of linear layers, but norms' gradients
  // are added at once. all_deferred: run() adds all gradients, so no gradient of a layer exists before run().
  enum class Mode { immediate, deferred, all_deferred };

  explicit WeightGradients(Mode mode) : mode_(mode) {}
  Mode mode() const { return mode_; }

  // Sets the bucket of gradients added from now on.
  void begin_bucket(int64_t bucket) { bucket_ = bucket; }

  // Adds weight_gradient [out, in] += dy^T x, and bias_gradient [out] (may be undefined) += the sum of dy's rows. If
  // deferred, run() adds them, and this object keeps dy and x until then.
  void add(const at::Tensor& weight_gradient, const at::Tensor& bias_gradient, const at::Tensor& dy,
           const at::Tensor& x);

  // Returns the vector to which the caller must add a norm's gradient. This is `gradient` itself or, if deferred, a
  // vector that run() adds to `gradient`.
  at::Tensor add_norm(const at::Tensor& gradient);

  // Executes the deferred calls in order and frees their tensors. With all_deferred, reports each bucket's gradient to
  // `use`, if given.
  void run(BucketUse* use = nullptr);

 private:
  // A linear layer's gradients or, without `x`, a norm's gradient `dy`.
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
