// The norm test of batch-size schedules checks that the batch is large enough to keep the relative error of its
// gradient below eta: Var/B <= eta^2 |g|^2 (Byrd et al. 2012; over workers Lau et al. 2024, arXiv 2412.21124, DDP-Norm
// and FSDP-Norm).
#pragma once

#include "copus/statistics/gradient_noise.h"

namespace copus {

// Estimates the variance of the gradient of B = large_batch samples, summed over coordinates, from A, the mean squared
// norm of gradients of b = small_batch of these samples each, and C, that of the gradient of all:
//   tr(Sigma) / B = (A - C) / (B/b - 1)
// Where the small batches are the shares of J workers, b = B/J, this is the sample variance of the workers' gradients
// over J, to the last coordinate: (A - C) / (J - 1). Where each worker shows only a part of its share, it is an
// estimate of the same number: without bias, since E[A] = |G|^2 + tr(Sigma)/b and E[C] = |G|^2 + tr(Sigma)/B whichever
// samples the small batches are, but noisier, and at times negative. Where gradients are sharded (FSDP), A and C are
// the sums over shards of the shards' A and C.
double variance_of_batch_gradient(const NormObservation& norms);

struct NormTestResult {
  bool passed;
  double batch;  // the next batch: B where the test is passed, never less
};

// Tests Var <= eta^2 C, Var being variance_of_batch_gradient; where it fails, the batch becomes ceil(B Var / (eta^2
// C)), at most max_batch. Norms that are not finite pass the test, since they tell nothing.
NormTestResult norm_test(const NormObservation& norms, double eta, double max_batch);

}  // namespace copus
