// AdamW with decoupled weight decay (Loshchilov & Hutter 2019, algorithm 2) over the flat buckets of a ParameterStore.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "copus/config/run_config.h"
#include "copus/model/parameters.h"

namespace copus {

// The two moments of one bucket: flat, of the master dtype, laid out like the bucket's master weights.
struct BucketMoments {
  at::Tensor exp_avg;
  at::Tensor exp_avg_sq;
};

class AdamW {
 public:
  // Refers to `parameters` for its whole life. Moments start at zero.
  AdamW(ParameterStore& parameters, const OptimizerConfig& config);

  // The 2-norm of all main gradients, a tied head's counted with its embedding; does not depend on threads.
  // Synchronises with the device.
  double gradient_norm() const;

  // One update of the master weights from gradient_factor * gradient, and publishes the weights. Embeddings and linear
  // weights decay; norms and biases do not. The factor is that of clipping (clip_factor).
  void step(double learning_rate, double gradient_factor);

  // Updates made so far, which the bias correction counts.
  int64_t steps() const { return steps_; }
  void set_steps(int64_t steps) { steps_ = steps; }

  // Per bucket; exp_avg and exp_avg_sq cut out one parameter's part as a view of its shape.
  const std::vector<BucketMoments>& moments() const { return moments_; }
  at::Tensor exp_avg(const Parameter& parameter) const;
  at::Tensor exp_avg_sq(const Parameter& parameter) const;

 private:
  // A stretch of a bucket whose elements all decay or all do not.
  struct Range {
    int64_t bucket;
    int64_t begin;
    int64_t end;
    bool decays;
  };

  ParameterStore& parameters_;
  OptimizerConfig config_;
  std::vector<BucketMoments> moments_;
  std::vector<Range> ranges_;
  int64_t steps_ = 0;
};

// Adds the gradient of a tied head to that of the embedding it is tied to. Once a step, after the last micro-batch.
void add_tied_gradient(const ParameterStore& parameters);

// The factor that brings a gradient of this norm down to clip_norm; 1 when it is not longer, or clip_norm is 0.
double clip_factor(double gradient_norm, double clip_norm);

}  // namespace copus
