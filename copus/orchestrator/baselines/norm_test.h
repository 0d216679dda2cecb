// The norm test of batch-size schedules checks that the batch is large enough to keep the relative error of its
// gradient below eta: Var/B <= eta^2 |g|^2 (Byrd et al. 2012; over workers Lau et al. 2024, arXiv 2412.21124, DDP-Norm
// and FSDP-Norm).
#pragma once

#include "copus/statistics/gradient_noise.h"

namespace copus {

// Estimates the variance of the gradient of B = large_batch samples, summed over coordinates:
//   tr(Sigma) / B = (A - C) / (B/b - 1)
// A is the mean squared norm of gradients of b = small_batch of these samples each, C the squared norm of the gradient
// of all B. If the small batches are the shares of J workers, b = B/J, the result is exactly the sample variance of the
// workers' gradients over J: (A - C) / (J - 1). If each worker measures only a part of its share, the result estimates
// the same number. This estimate is unbiased, since E[A] = |G|^2 + tr(Sigma)/b and E[C] = |G|^2 + tr(Sigma)/B for any
// choice of samples, but it is noisier, and at times negative. If gradients are sharded (FSDP), A and C are sums over
// the shards.
double variance_of_batch_gradient(const NormObservation& norms);

struct NormTestResult {
  bool passed;
  double batch;  // the next batch, at least B; B if the test is passed
};

// Tests Var <= eta^2 C, with Var = variance_of_batch_gradient. If the test fails, the batch becomes ceil(B Var / (eta^2
// C)), at most max_batch. Norms that are not finite pass the test, since they carry no information.
NormTestResult norm_test(const NormObservation& norms, double eta, double max_batch);

}  // namespace copus
