#include "copus/train/trainer/branch.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "copus/base/testing/test_support.h"
#include "copus/comm/shared_memory/single_rank_world.h"
#include "copus/train/testing/take_snapshot.h"

namespace copus {
namespace {

const auto go_on = [] { return StopReason::none; };

class BranchTest : public ::testing::Test {
 protected:
  BranchTest() {
    std::ofstream file(folder_.path() / "corpus.txt");
    for (int i = 0; i < 400; ++i) file << i << " green bottles, " << i * i << " on the wall\n";
    file.close();
    run_.model.vocab_size = 256;
    run_.model.hidden_size = 32;
    run_.model.intermediate_size = 64;
    run_.model.num_layers = 2;
    run_.model.num_heads = 4;
    run_.model.num_kv_heads = 2;
    run_.model.head_dim = 8;
    run_.data.train = {{.path = (folder_.path() / "corpus.txt").string(), .weight = 1}};
    run_.data.held_out_fraction = 0.1;
    run_.train.sequence_length = 32;
    run_.train.global_batch = 8;
    run_.train.micro_batch = 8;
    run_.train.max_steps = 12;
    run_.execution.precision = Precision::fp32;
    run_.optimizer.lr = 1e-2;
    run_.optimizer.schedule = LearningRateSchedule::constant;
  }

  Dataset open_data() const {
    return {run_.data, run_.train.sequence_length, run_.model.vocab_size, run_.execution.seed};
  }

  // A checkpoint of the run after its 12 steps.
  Checkpoint trunk(const Dataset& dataset) const {
    const std::unique_ptr<World> world = single_rank_world();
    Trainer trainer(run_, dataset, at::kCPU, *world);
    while (!trainer.finished()) trainer.step(go_on);
    CheckpointWriter writer(folder_.path() / "checkpoints", 1);
    writer.write(*take_snapshot(trainer, to_toml(run_)));
    writer.finish();
    return Checkpoint(*writer.last_written());
  }

  TemporaryFolder folder_;
  RunConfig run_;
};

// The branch is bitwise equal to the run resumed with the same settings.
TEST_F(BranchTest, TrainsAsTheRunWouldGoOn) {
  const Dataset dataset = open_data();
  const Checkpoint checkpoint = trunk(dataset);
  const Branch branch{.global_batch = 8, .learning_rate = 1e-2, .samples = 80, .skipped_samples = 0};
  const std::optional<double> loss = train_branch(run_, checkpoint, branch, dataset, at::kCPU, go_on);

  RunConfig resumed = run_;
  resumed.train.max_steps = 0;
  resumed.train.max_tokens = (96 + 80) * 32;
  resumed.optimizer.schedule = LearningRateSchedule::wsd;
  resumed.optimizer.min_lr_ratio = 0;
  resumed.optimizer.decay_tokens = 20 * 32;
  resumed.evaluate.max_batches = 0;
  resumed.noise_scale.enabled = false;  // as in the branch: measuring would split steps in two, and round differently
  const std::unique_ptr<World> world = single_rank_world();
  Trainer trainer(resumed, dataset, at::kCPU, *world);
  trainer.restore(checkpoint);
  while (!trainer.finished()) trainer.step(go_on);
  ASSERT_LT(dataset.held_out_samples(), branch_held_out_samples);
  EXPECT_EQ(loss, trainer.held_out_loss(go_on));
}

TEST_F(BranchTest, ARepetitionReadsOtherSamples) {
  const Dataset dataset = open_data();
  const Checkpoint checkpoint = trunk(dataset);
  const auto loss = [&](int64_t skipped) {
    const Branch branch{.global_batch = 16, .learning_rate = 1e-2, .samples = 80, .skipped_samples = skipped};
    return train_branch(run_, checkpoint, branch, dataset, at::kCPU, go_on);
  };
  EXPECT_EQ(loss(0), loss(0));
  EXPECT_NE(loss(0), loss(80));
}

// Moments of a larger batch are too small for a smaller one, so the first updates are shorter, as after a switch.
TEST_F(BranchTest, MomentsOfAnotherBatchAreAllowedFor) {
  const Dataset dataset = open_data();
  const Checkpoint checkpoint = trunk(dataset);
  const std::unique_ptr<World> world = single_rank_world();
  const Branch branch{.global_batch = 2, .learning_rate = 1e-2, .samples = 80, .skipped_samples = 5};
  Trainer trainer(branch_config(run_, branch, 96 * 32), dataset, at::kCPU, *world);
  trainer.branch_from(checkpoint, branch.skipped_samples);
  EXPECT_EQ(trainer.state().consumed_samples, 96 + 5);
  EXPECT_EQ(trainer.state().consumed_tokens, 96 * 32);
  const double ratio = 1 - (1 - 2.0 / 8) * run_.optimizer.beta2;
  EXPECT_DOUBLE_EQ(trainer.step(go_on).lr, 1e-2 * std::sqrt(ratio));
}

// The branch's own batch is its reference batch, so its settings are those that the run would have with that batch.
TEST_F(BranchTest, WhatFollowsTheBatchIsAsInTheRun) {
  const Branch branch{
      .global_batch = 32, .learning_rate = 3e-2, .rate_factor = 3, .samples = 320, .skipped_samples = 0};
  const RunConfig plain = branch_config(run_, branch, 0);
  EXPECT_EQ(plain.optimizer.beta2, run_.optimizer.beta2);
  EXPECT_EQ(plain.optimizer.weight_decay, run_.optimizer.weight_decay);
  run_.optimizer.scale_beta2 = run_.optimizer.scale_weight_decay = true;
  const RunConfig scaled = branch_config(run_, branch, 0);
  EXPECT_DOUBLE_EQ(scaled.optimizer.beta2, std::pow(run_.optimizer.beta2, 4));
  EXPECT_DOUBLE_EQ(scaled.optimizer.weight_decay, run_.optimizer.weight_decay * 4 / 3);
  EXPECT_EQ(reference_batch_of(scaled), 32);
}

TEST_F(BranchTest, EndsWhenItIsTold) {
  const Dataset dataset = open_data();
  const Branch branch{.global_batch = 8, .learning_rate = 1e-2, .samples = 80, .skipped_samples = 0};
  EXPECT_FALSE(train_branch(run_, trunk(dataset), branch, dataset, at::kCPU, [] { return StopReason::interrupt; }));
}

}  // namespace
}  // namespace copus
