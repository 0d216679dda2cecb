// A branch of a run: training that leaves one of its checkpoints with another batch or learning rate, for some samples,
// in order to be compared with other branches (statistics/compared/branch_calibration.h). It lets the learning rate
// fall to zero at its end, since a batch's noise would otherwise decide about the loss rather than its progress.
#pragma once

#include <cstdint>
#include <optional>

#include "copus/train/trainer.h"

namespace copus {

// Share of a branch over whose last samples the rate falls linearly to zero.
constexpr double branch_decay = 0.25;
// Held-out sequences that a branch is judged by, or all where there are fewer.
constexpr int64_t branch_held_out_samples = 512;

struct Branch {
  int64_t global_batch = 0;
  double learning_rate = 0;     // constant until the decay
  double rate_factor = 1;       // part of it: that for the batch
  int64_t samples = 0;          // to read; a multiple of global_batch
  int64_t skipped_samples = 0;  // between those that the checkpoint's run had read and the branch's first
};

// The configuration of a run as a branch of it trains: on one rank, without adapting. `consumed_tokens`: of the
// checkpoint.
RunConfig branch_config(const RunConfig& run, const Branch& branch, int64_t consumed_tokens);

// Trains the branch and returns the mean held-out loss of a token, in nats; infinite where it diverged. Empty where
// `stop` gave a reason. Throws UserError as Trainer's functions do, and where there are no held-out data.
std::optional<double> train_branch(const RunConfig& run, const Checkpoint& checkpoint, const Branch& branch,
                                   const Dataset& dataset, at::Device device, const StopQuestion& stop);

}  // namespace copus
