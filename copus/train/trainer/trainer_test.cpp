#include "copus/train/trainer/trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <memory>
#include <vector>

#include "copus/base/error.h"
#include "copus/base/files/durable_file.h"
#include "copus/base/testing/test_support.h"
#include "copus/comm/shared_memory/single_rank_world.h"
#include "copus/model/kernels/kernels.h"
#include "copus/model/memory/caching_allocator.h"
#include "copus/model/testing/test_device.h"
#include "copus/train/testing/take_snapshot.h"

namespace copus {
namespace {

using ::testing::AllOf;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::Le;
using ::testing::ThrowsMessage;

const auto never_stop = [] { return StopReason::none; };

// A byte model of 2 layers that memorizes a small text.
class TrainerTest : public ::testing::Test {
 protected:
  TrainerTest() {
    write_text("corpus.txt", "the quick brown fox jumps over the lazy dog; ");

    config_.model.vocab_size = 256;
    config_.model.hidden_size = 32;
    config_.model.intermediate_size = 64;
    config_.model.num_layers = 2;
    config_.model.num_heads = 4;
    config_.model.num_kv_heads = 2;
    config_.model.head_dim = 8;
    config_.data.train = {{.path = (folder_.path() / "corpus.txt").string(), .weight = 1}};
    config_.data.held_out_fraction = 0.1;
    config_.train.sequence_length = 32;
    config_.train.global_batch = 8;
    config_.train.micro_batch = 4;
    config_.train.max_steps = 30;
    config_.execution.precision = Precision::fp32;
    config_.optimizer.lr = 1e-2;
    config_.optimizer.warmup_tokens = 0.1;
  }

  void write_text(const std::string& name, const std::string& line) const {
    std::ofstream file(folder_.path() / name);
    for (int i = 0; i < 100; ++i) file << line << i << '\n';
  }

  Dataset open_data() const {
    return {config_.data, config_.train.sequence_length, config_.model.vocab_size, config_.execution.seed};
  }

  // Writes the trainer's state to disk and reads it back.
  Checkpoint save(Trainer& trainer) const {
    CheckpointWriter writer(folder_.path() / concat("checkpoints of ", to_string(config_.optimizer.kind)), 1);
    writer.write(*take_snapshot(trainer, to_toml(config_)));
    writer.finish();
    return Checkpoint(*writer.last_written());
  }

  TemporaryFolder folder_;
  RunConfig config_;
  std::unique_ptr<World> world_ = single_rank_world();
};

std::vector<float> weights_of(const Trainer& trainer) {
  std::vector<float> all;
  for (const Parameter& parameter : trainer.parameters().parameters()) {
    if (parameter.tied_copy) continue;
    std::vector<float> values(parameter.info.num_elements());
    kernels::copy_to_host(trainer.parameters().master(parameter), values.data());
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

TEST_F(TrainerTest, LearnsAndCountsWhatItConsumed) {
  const Dataset dataset = open_data();
  Trainer trainer(config_, dataset, test_device(), *world_);
  const double before = *trainer.held_out_loss(never_stop);
  EXPECT_NEAR(before, std::log(256), 0.5);
  StepRecord record;
  while (!trainer.finished()) {
    record = trainer.step();
    EXPECT_DOUBLE_EQ(observation_of(record).share_done.value(), static_cast<double>(record.step) / 30);
    EXPECT_EQ(observation_of(record).seconds_left, trainer.seconds_left());
  }
  EXPECT_EQ(record.step, 30);
  EXPECT_EQ(record.consumed_samples, 240);
  EXPECT_EQ(record.consumed_tokens, 240 * 32);
  EXPECT_NEAR(record.lr, 1e-3, 1e-9);  // the last step of the cosine
  EXPECT_LT(record.loss, 0.6 * before);
  EXPECT_LT(*trainer.held_out_loss(never_stop), 0.6 * before);
  EXPECT_EQ(trainer.share_done(), 1);
}

TEST_F(TrainerTest, PausesDoNotLengthenTheRestOfARun) {
  const Dataset dataset = open_data();
  Trainer trainer(config_, dataset, test_device(), *world_);
  for (int step = 0; step < 10; ++step) trainer.step();
  const double elapsed = trainer.state().elapsed_seconds, left = trainer.seconds_left();
  trainer.spend(1000);
  EXPECT_DOUBLE_EQ(trainer.state().elapsed_seconds, elapsed + 1000);
  EXPECT_NEAR(trainer.seconds_left(), left, 1e-9);
  EXPECT_LT(trainer.step().seconds_left.value(), 1000);
}

TEST_F(TrainerTest, ARecordSaysWhereTheScheduleIsAndWhetherTheUpdateWasClipped) {
  config_.optimizer.schedule = LearningRateSchedule::wsd;
  config_.optimizer.decay_tokens = 0.21;
  const Dataset dataset = open_data();
  for (const bool clips : {true, false}) {
    config_.train.clip_norm = clips ? 1e-6 : 1e6;
    Trainer trainer(config_, dataset, test_device(), *world_);
    while (!trainer.finished()) {
      const StepRecord record = trainer.step();
      EXPECT_EQ(record.clipped, clips) << record.step;
      const SchedulePhase lower = record.step < 10 ? SchedulePhase::warm_up : SchedulePhase::decay;
      EXPECT_EQ(record.phase, record.lr == config_.optimizer.lr ? SchedulePhase::main : lower) << record.step;
      EXPECT_EQ(record.phase == SchedulePhase::main, record.step >= 3 && record.step <= 23) << record.step;
    }
  }
}

TEST_F(TrainerTest, AStepThatDoesNotFitIsTheUsersMistake) {
  install_caching_allocator();
  config_.train.global_batch = 512;
  config_.train.micro_batch = 512;
  const Dataset dataset = open_data();
  Trainer trainer(config_, dataset, at::kCPU, *world_);
  set_host_memory_limit(1);
  EXPECT_THAT([&] { trainer.step(); },
              ThrowsMessage<UserError>(AllOf(HasSubstr("step 1 does not fit into the memory of cpu: "),
                                             HasSubstr("train.micro_batch = 512"), HasSubstr("the layout d=1,t=1,p=1"),
                                             HasSubstr("lower train.micro_batch, set train.recompute = \"full\""))));
  set_host_memory_limit(0);
}

TEST_F(TrainerTest, MicroBatchesAddUpToTheGlobalBatch) {
  const Dataset dataset = open_data();
  std::vector<std::vector<double>> losses;
  std::vector<double> gradient_norms;               // compared since AdamW would hide a wrong scale
  for (const int64_t micro_batch : {8, 4, 3, 1}) {  // with 3 the last one is smaller
    config_.train.micro_batch = micro_batch;
    Trainer trainer(config_, dataset, test_device(), *world_);
    losses.emplace_back();
    for (int step = 0; step < 5; ++step) {
      const StepRecord record = trainer.step();
      losses.back().push_back(record.loss);
      if (step == 0) gradient_norms.push_back(record.grad_norm);
    }
  }
  for (const double norm : gradient_norms) EXPECT_NEAR(norm / gradient_norms[0], 1, 1e-4);
  for (const auto& other : losses) {
    for (size_t step = 0; step < other.size(); ++step) EXPECT_NEAR(other[step], losses[0][step], 2e-5) << step;
  }
}

TEST_F(TrainerTest, AResumedRunRepeatsAnUninterruptedOneBitwise) {
  for (const OptimizerKind kind : {OptimizerKind::adamw, OptimizerKind::signum, OptimizerKind::muon}) {
    SCOPED_TRACE(to_string(kind));
    config_.optimizer.kind = kind;
    config_.noise_scale.dual_interval = 2;
    const Dataset dataset = open_data();
    Trainer uninterrupted(config_, dataset, test_device(), *world_);
    std::vector<StepRecord> expected;
    for (int step = 0; step < 12; ++step) expected.push_back(uninterrupted.step());

    Trainer first(config_, dataset, test_device(), *world_);
    for (int step = 0; step < 5; ++step) first.step();
    const Checkpoint checkpoint = save(first);

    const Dataset reopened = open_data();
    Trainer second(config_, reopened, test_device(), *world_);
    second.restore(checkpoint);
    EXPECT_EQ(second.state(), first.state());
    for (int step = 5; step < 12; ++step) {
      const StepRecord record = second.step();
      EXPECT_EQ(record.loss, expected[step].loss) << step;
      EXPECT_EQ(record.grad_norm, expected[step].grad_norm) << step;
      EXPECT_EQ(record.lr, expected[step].lr) << step;
      EXPECT_EQ(record.consumed_samples, expected[step].consumed_samples);
      EXPECT_EQ(record.small_batch_squared_norm, expected[step].small_batch_squared_norm) << step;
      EXPECT_EQ(record.noise_scale, expected[step].noise_scale) << step;
      EXPECT_EQ(record.noise_scale_low, expected[step].noise_scale_low) << step;
      EXPECT_EQ(record.sign_noise_scale, expected[step].sign_noise_scale) << step;
      EXPECT_EQ(record.spectral_noise_scale_low, expected[step].spectral_noise_scale_low) << step;
      EXPECT_EQ(record.preconditioned_noise_scale_low, expected[step].preconditioned_noise_scale_low) << step;
    }
    EXPECT_TRUE(expected.back().noise_scale.has_value());
    const auto measures_dual_norms = [](const StepRecord& record) {
      return record.sign_noise_scale_low && record.spectral_noise_scale_low;
    };
    EXPECT_TRUE(std::ranges::any_of(expected, measures_dual_norms));
    EXPECT_EQ(weights_of(second), weights_of(uninterrupted));
  }
}

TEST_F(TrainerTest, RefusesACheckpointOfAnotherOptimizer) {
  const Dataset dataset = open_data();
  const auto resume = [&](OptimizerKind then, OptimizerKind now) {
    config_.optimizer.kind = then;
    Trainer first(config_, dataset, test_device(), *world_);
    first.step();
    const Checkpoint checkpoint = save(first);
    config_.optimizer.kind = now;
    Trainer(config_, dataset, test_device(), *world_).restore(checkpoint);
  };
  EXPECT_THAT([&] { resume(OptimizerKind::adamw, OptimizerKind::signum); },
              ThrowsMessage<UserError>(HasSubstr("it was written with optimizer.kind = adamw, and now it is signum")));
  EXPECT_THAT([&] { resume(OptimizerKind::signum, OptimizerKind::adamw); },
              ThrowsMessage<UserError>(HasSubstr("it was written with optimizer.kind = signum, and now it is adamw")));
  EXPECT_THAT([&] { resume(OptimizerKind::adamw, OptimizerKind::muon); },
              ThrowsMessage<UserError>(HasSubstr("it was written with optimizer.kind = adamw, and now it is muon")));
}

TEST_F(TrainerTest, TheNoiseScaleIsMeasuredFromTheNextStepOnWhenItIsSwitchedOn) {
  const Dataset dataset = open_data();
  Trainer trainer(config_, dataset, test_device(), *world_);
  for (const bool on : {true, false, true}) {
    trainer.measure_noise(on);
    const StepRecord record = trainer.step();
    EXPECT_EQ(record.small_batch, on ? std::optional<double>(4) : std::nullopt);
    EXPECT_EQ(record.small_batch_squared_norm.has_value(), on);
  }
  EXPECT_EQ(trainer.state().noise_average.steps, 2);
}

TEST_F(TrainerTest, RefusesACheckpointOfOtherDataOrAnotherSeed) {
  Checkpoint checkpoint = [&] {
    const Dataset dataset = open_data();
    Trainer trainer(config_, dataset, test_device(), *world_);
    return save(trainer);
  }();
  config_.execution.seed = 99;
  const Dataset other_order = open_data();
  EXPECT_THAT([&] { Trainer(config_, other_order, test_device(), *world_).restore(checkpoint); },
              ThrowsMessage<UserError>(AllOf(HasSubstr("train.seed"), HasSubstr("1234"), HasSubstr("99"))));
  config_.execution.seed = 1234;
  write_text("corpus.txt", "another text of about the same length, you see; ");
  const Dataset other_text = open_data();
  EXPECT_THAT([&] { Trainer(config_, other_text, test_device(), *world_).restore(checkpoint); },
              ThrowsMessage<UserError>(HasSubstr("data.train")));
}

// A NaN weight makes every loss NaN.
TEST_F(TrainerTest, SkipsStepsThatAreNotFiniteAndGoesOn) {
  config_.optimizer.scale_beta2 = true;
  const Dataset dataset = open_data();
  Trainer trainer(config_, dataset, test_device(), *world_);
  trainer.step();
  const std::vector<float> weights = weights_of(trainer);
  const at::Tensor norm = trainer.parameters().master(trainer.parameters().find("model.norm.weight"));
  const at::Tensor saved = norm.clone();
  norm.fill_(std::numeric_limits<double>::quiet_NaN());
  trainer.parameters().publish_weights();

  const StepRecord skipped = trainer.step();
  EXPECT_FALSE(std::isfinite(skipped.loss));
  EXPECT_EQ(skipped.step, 2);
  EXPECT_EQ(skipped.clipped, std::nullopt);
  EXPECT_EQ(skipped.skipped_samples, 8);
  EXPECT_EQ(trainer.state().optimizer_steps, 1);
  EXPECT_EQ(trainer.state().optimizer.find("beta2_product"), config_.optimizer.beta2);
  EXPECT_EQ(trainer.state().skipped_steps, 1);
  EXPECT_EQ(trainer.state().consumed_samples, 16);

  norm.copy_(saved);
  trainer.parameters().publish_weights();
  EXPECT_EQ(weights_of(trainer), weights);
  const StepRecord good = trainer.step();
  EXPECT_TRUE(std::isfinite(good.loss));
  EXPECT_EQ(trainer.state().optimizer_steps, 2);
  EXPECT_EQ(trainer.state().skipped_in_a_row, 0);
}

TEST_F(TrainerTest, TenSkippedStepsInARowEndTheRun) {
  const Dataset dataset = open_data();
  Trainer trainer(config_, dataset, test_device(), *world_);
  ParameterStore& parameters = trainer.parameters();
  parameters.master(parameters.find("model.norm.weight")).fill_(std::numeric_limits<double>::infinity());
  parameters.publish_weights();
  for (int step = 0; step < 9; ++step) trainer.step();
  EXPECT_THAT([&] { trainer.step(); },
              ThrowsMessage<UserError>(AllOf(HasSubstr("diverged"), HasSubstr("10 steps"), HasSubstr("optimizer.lr"))));
}

TEST_F(TrainerTest, ALimitInSecondsEndsTheRunAndClocksTheLearningRate) {
  config_.train.max_steps = 0;
  config_.train.max_seconds = 0.2;
  config_.optimizer.warmup_tokens = 0;
  const Dataset dataset = open_data();
  Trainer trainer(config_, dataset, test_device(), *world_);
  while (!trainer.finished()) {
    const double before = trainer.state().elapsed_seconds;
    const StepRecord record = trainer.step();
    const LearningRate rate(config_.optimizer, config_.train);
    // The cosine falls, and the rate is the schedule's at some moment within the step.
    EXPECT_THAT(record.lr, AllOf(Le(rate.at({record.consumed_tokens, before})),
                                 Ge(rate.at({record.consumed_tokens, record.elapsed_seconds}))));
  }
  EXPECT_GE(trainer.state().elapsed_seconds, 0.2);

  // After a resume the time continues to count.
  Trainer resumed(config_, dataset, test_device(), *world_);
  resumed.restore(save(trainer));
  EXPECT_TRUE(resumed.finished());
}

TEST_F(TrainerTest, HeldOutLossStopsWhenAskedTo) {
  const Dataset dataset = open_data();
  Trainer trainer(config_, dataset, test_device(), *world_);
  EXPECT_EQ(trainer.held_out_loss([] { return StopReason::interrupt; }), std::nullopt);
}

// The model learns the first of two sources, which has 99 % of the samples.
TEST_F(TrainerTest, EachSourceHasItsHeldOutLoss) {
  const auto write = [&](const char* name, char letter) {
    const std::filesystem::path path = folder_.path() / name;
    write_file_durably(path, std::string(4000, letter));
    return path.string();
  };
  config_.data.train = {{write("a.txt", 'a'), 99}, {write("b.txt", 'b'), 1}};
  config_.data.held_out_fraction = 0.2;
  const Dataset dataset = open_data();
  Trainer trainer(config_, dataset, test_device(), *world_);
  while (!trainer.finished()) trainer.step();
  const HeldOutLoss loss = trainer.evaluate(never_stop).value();
  ASSERT_EQ(loss.sources.size(), 2u);
  EXPECT_EQ(loss.sources[0].source, config_.data.train[0].path);
  EXPECT_EQ(loss.sources[1].source, config_.data.train[1].path);
  EXPECT_LT(loss.sources[0].loss, 0.5 * loss.sources[1].loss);
  EXPECT_NEAR(loss.mean, 0.99 * loss.sources[0].loss + 0.01 * loss.sources[1].loss, 1e-9);
}

TEST_F(TrainerTest, NewDataAreReadFromTheirBeginningAndKeepTheMoments) {
  const Dataset before = open_data();
  Trainer trainer(config_, before, test_device(), *world_);
  for (int step = 0; step < 3; ++step) trainer.step();
  const Checkpoint checkpoint = save(trainer);
  const double rate = trainer.step().lr;

  const std::filesystem::path path = folder_.path() / "new.txt";
  write_file_durably(path, std::string(4000, 'n'));
  config_.data.train = {{path.string()}};
  const Dataset after = open_data();
  Trainer refused(config_, after, test_device(), *world_);
  EXPECT_THAT([&] { refused.restore(checkpoint); }, ThrowsMessage<UserError>(HasSubstr("--new-data")));

  Trainer resumed(config_, after, test_device(), *world_);
  resumed.restore(checkpoint, /*takes_new_data=*/true);
  const int64_t samples = resumed.state().consumed_samples;
  EXPECT_EQ(samples, 24);
  EXPECT_EQ(resumed.state().data_begin, 24);
  EXPECT_EQ(resumed.state().data_position(), 0u);
  EXPECT_EQ(resumed.state().optimizer_steps, 3);
  EXPECT_EQ(resumed.state().data_fingerprint, after.fingerprint());
  EXPECT_EQ(resumed.step().lr, rate);
  EXPECT_EQ(resumed.state().data_position(), 8u);

  // From then on the new data are the run's data.
  Trainer again(config_, after, test_device(), *world_);
  again.restore(save(resumed), /*takes_new_data=*/true);
  EXPECT_EQ(again.state().data_begin, 24);
  EXPECT_EQ(again.state().data_position(), 8u);
}

TEST_F(TrainerTest, WithoutHeldOutDataThereIsNoHeldOutLoss) {
  config_.data.held_out_fraction = 0;
  const Dataset dataset = open_data();
  EXPECT_EQ(Trainer(config_, dataset, test_device(), *world_).held_out_loss(never_stop), std::nullopt);
}

// Each word is a document, so among sequences of a single token some have no loss.
TEST_F(TrainerTest, AStepWhoseTokensAllEndADocumentChangesNoWeight) {
  config_.data.document_separator = " ";
  config_.train.sequence_length = 1;
  config_.train.global_batch = config_.train.micro_batch = 1;
  config_.optimizer.kind = OptimizerKind::muon;
  const Dataset dataset = open_data();
  Trainer trainer(config_, dataset, test_device(), *world_);
  int64_t without_loss = 0, updates = 0;
  // Directions of an update that is not made would be in this slot.
  const auto has_directions = [&] {
    const Checkpoint checkpoint = save(trainer);
    const TensorView& slot = checkpoint.optimizer("second_moment.model.layers.0.mlp.up_proj.weight");
    return std::ranges::any_of(slot.bytes, [](std::byte byte) { return byte != std::byte{0}; });
  };
  while (!trainer.finished()) {
    const bool is_masked = dataset.loss_tokens(static_cast<uint64_t>(trainer.state().consumed_samples), 1) == 0;
    const std::vector<float> before = weights_of(trainer);
    const StepRecord record = trainer.step();
    if (is_masked && without_loss == 0) {
      EXPECT_FALSE(has_directions()) << "step " << record.step;
    }
    EXPECT_EQ(record.lacks_loss(), is_masked);
    EXPECT_FALSE(record.skipped());
    EXPECT_EQ(std::isfinite(record.loss), !is_masked);
    EXPECT_EQ(weights_of(trainer) == before, is_masked) << "step " << record.step;
    EXPECT_EQ(record.grad_norm == 0, is_masked);
    (is_masked ? without_loss : updates) += 1;
  }
  EXPECT_GT(without_loss, 0);
  EXPECT_EQ(trainer.state().optimizer_steps, updates);
  EXPECT_EQ(trainer.state().skipped_steps, 0);
}

}  // namespace
}  // namespace copus
