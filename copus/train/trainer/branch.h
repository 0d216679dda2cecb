// A branch of a run trains on some samples, from one of the run's checkpoints, with another batch or learning rate. Its
// loss is compared with the losses of other branches (statistics/branch_calibration.h). At its end the learning rate
// falls to zero, so that the loss shows the progress and not the noise of the batch.
#pragma once

#include <cstdint>
#include <optional>

#include "copus/orchestrator/controller/run_calibration.h"
#include "copus/train/trainer/trainer.h"

namespace copus {

// The last fraction of a branch's samples, over which the rate falls linearly to zero.
constexpr double branch_decay = 0.25;

struct Branch {
  int64_t global_batch = 0;
  double learning_rate = 0;     // constant until the decay
  double rate_factor = 1;       // the part of learning_rate that is due to the batch
  int64_t samples = 0;          // number of samples to read; a multiple of global_batch
  int64_t skipped_samples = 0;  // between the last sample that the checkpoint's run has read and the branch's first
};

// Returns the run configuration with which a branch trains: on one rank, without adapting. `consumed_tokens` is the
// checkpoint's.
RunConfig branch_config(const RunConfig& run, const Branch& branch, int64_t consumed_tokens);
// The same in the run's layout and micro-batch, on the run's clock.
RunConfig branch_in_layout(const RunConfig& run, const Branch& branch, int64_t consumed_tokens);

// Trains the branch. Returns the mean held-out loss per token, in nats; infinite if it diverged. Empty if `stop`
// returned a reason. Throws UserError as Trainer's functions do, and without held-out data.
std::optional<double> train_branch(const RunConfig& run, const Checkpoint& checkpoint, const Branch& branch,
                                   const Dataset& dataset, at::Device device, const StopQuestion& stop);

}  // namespace copus
