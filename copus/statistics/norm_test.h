// The norm test of batch-size schedules checks that the batch is large enough to keep the relative error of its
// gradient below eta: Var/B <= eta^2 |g|^2 (Byrd et al. 2012; over workers Lau et al. 2024, arXiv 2412.21124, DDP-Norm
// and FSDP-Norm).
#pragma once

namespace copus {

// Squared norms of J workers with B/J samples each: A is the mean over their gradients, C that of the mean gradient.
struct WorkerNorms {
  double workers = 0;            // J >= 2
  double batch = 0;              // B, samples of all workers together
  double mean_squared_norm = 0;  // A
  double squared_norm = 0;       // C
};

struct NormTestResult {
  bool passed;
  double batch;  // the next batch: B where the test is passed, never less
};

// Tests (A - C)/(J - 1) <= eta^2 C; where it fails, the batch becomes ceil(B (A - C) / ((J - 1) eta^2 C)), at most
// max_batch. Where gradients are sharded (FSDP), A and C are the sums over shards of the shards' A and C. Norms that
// are not finite pass the test, since they tell nothing.
NormTestResult norm_test(const WorkerNorms& norms, double eta, double max_batch);

}  // namespace copus
