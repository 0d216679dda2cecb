// The norm test of batch-size schedules: is the batch large enough that its gradient's relative error stays below eta?
// Var/B <= eta^2 |g|^2 (Byrd et al. 2012; over workers Lau et al. 2024, arXiv 2412.21124, DDP-Norm and FSDP-Norm).
#pragma once

namespace copus {

// J workers with B/J samples each: A is the mean squared norm of their gradients, C that of the mean of these.
struct WorkerNorms {
  double workers = 0;            // J >= 2
  double batch = 0;              // B, of all workers
  double mean_squared_norm = 0;  // A
  double squared_norm = 0;       // C
};

struct NormTestResult {
  bool passed;
  double batch;  // the batch to go on with: B where the test is passed, never less
};

// (A - C)/(J - 1) <= eta^2 C; otherwise the batch becomes ceil(B (A - C) / ((J - 1) eta^2 C)), at most max_batch. Where
// gradients are sharded (FSDP), A and C are the sums over shards of the shards' A and C. Norms that are not finite tell
// nothing, so they pass.
NormTestResult norm_test(const WorkerNorms& norms, double eta, double max_batch);

}  // namespace copus
