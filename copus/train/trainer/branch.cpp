#include "copus/train/trainer/branch.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <numeric>

#include "copus/base/error.h"
#include "copus/comm/shared_memory/single_rank_world.h"
#include "copus/statistics/learning_rate_scaling.h"
#include "copus/train/step/training_state.h"

namespace copus {

namespace {

// Micro-batches are powers of two up to this size, so that the same held-out sequences judge all branches.
constexpr int64_t largest_micro_batch = 8;

// Sets beta2 and weight decay to the values that the run would have with the branch's batch.
void scale_with_batch(OptimizerConfig& optimizer, const Branch& branch, double reference_batch) {
  const auto batch = static_cast<double>(branch.global_batch);
  if (optimizer.scale_beta2) optimizer.beta2 = scaled_beta2(optimizer.beta2, batch, reference_batch);
  if (optimizer.scale_weight_decay) {
    optimizer.weight_decay *= weight_decay_factor(batch, reference_batch, branch.rate_factor);
  }
}

int64_t micro_batch_of(int64_t global_batch) { return std::gcd(global_batch, largest_micro_batch); }

}  // namespace

RunConfig branch_config(const RunConfig& run, const Branch& branch, int64_t consumed_tokens) {
  RunConfig config = run;
  config.parallel = {};
  config.cluster = {};
  config.train.micro_batch = micro_batch_of(branch.global_batch);
  return branch_in_layout(config, branch, consumed_tokens);
}

RunConfig branch_in_layout(const RunConfig& run, const Branch& branch, int64_t consumed_tokens) {
  COPUS_CHECK(branch.samples % branch.global_batch == 0, branch.samples, " in batches of ", branch.global_batch);
  RunConfig config = run;
  config.adapt = {};
  config.noise_scale.enabled = false;
  config.noise_scale.dual_interval = 0;
  config.train.global_batch = branch.global_batch;
  config.train.max_steps = 0;
  config.train.max_seconds = 0;
  const int64_t tokens = branch.samples * run.train.sequence_length;
  config.train.max_tokens = consumed_tokens + tokens;
  config.optimizer.lr = branch.learning_rate;
  scale_with_batch(config.optimizer, branch, static_cast<double>(reference_batch_of(run)));
  config.optimizer.reference_batch = 0;  // the branch's own
  config.optimizer.min_lr_ratio = 0;
  config.optimizer.warmup_tokens = 0;
  config.optimizer.schedule = LearningRateSchedule::wsd;
  config.optimizer.decay_tokens = branch_decay * static_cast<double>(tokens);
  config.evaluate.max_batches = std::max<int64_t>(1, branch_held_out_samples / config.train.micro_batch);
  return config;
}

std::optional<double> train_branch(const RunConfig& run, const Checkpoint& checkpoint, const Branch& branch,
                                   const Dataset& dataset, at::Device device, const StopQuestion& stop) {
  const TrainingState state = parse_training_state(checkpoint.training_state(), checkpoint.directory().string());
  const RunConfig config = branch_config(run, branch, state.consumed_tokens);
  const std::unique_ptr<World> world = single_rank_world();
  Trainer trainer(config, dataset, device, *world);
  trainer.branch_from(checkpoint, branch.skipped_samples);
  while (!trainer.finished()) {
    const StepRecord record = trainer.step(stop);
    if (trainer.stop_reason() != StopReason::none) return std::nullopt;
    // A skipped step reads its samples without learning from them, so the loss after it would not show the efficiency
    // of the samples. The branch therefore counts as diverged.
    if (record.skipped()) return std::numeric_limits<double>::infinity();
  }
  const std::optional<double> loss = trainer.held_out_loss(stop);
  if (trainer.stop_reason() != StopReason::none) return std::nullopt;
  if (!loss) throw UserError("calibrate: the run has no held-out data: set data.held_out or data.held_out_fraction");
  return loss;
}

}  // namespace copus
