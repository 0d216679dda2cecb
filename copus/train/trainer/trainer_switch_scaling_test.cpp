// AdamW's second moments and weight decay in runs that change their batch and scale both with it: compared with AdamW
// in float64, and over a checkpoint.
#include <ATen/TensorOperators.h>
#include <ATen/ops/sqrt.h>
#include <ATen/ops/zeros_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "copus/base/testing/test_support.h"
#include "copus/checkpoint/checkpoint.h"
#include "copus/train/testing/switch_test_support.h"
#include "copus/train/testing/take_snapshot.h"

namespace copus {
namespace {

using namespace layouts;
using namespace switch_tests;

// AdamW in float64, one logical parameter after the other, from the gradients of a run with changing batches. beta2 and
// weight decay follow from what scaling keeps constant: the half-life in samples, and the decay per sample.
class ReferenceAdamW {
 public:
  ReferenceAdamW(const ParameterStore& parameters, const OptimizerConfig& config) : config_(config) {
    for (const Parameter& parameter : parameters.parameters()) {
      const at::Tensor weight = to_float64(parameters.master(parameter));
      state_.push_back({weight, at::zeros_like(weight), at::zeros_like(weight)});
    }
  }

  // Applies an update with learning rate `rate`, from the gradients that the trainer's update has left.
  // `schedule_rate`: the schedule's rate at B_ref.
  void follow(const ParameterStore& parameters, double gradient_factor, double batch, double rate,
              double schedule_rate) {
    const double share = batch / static_cast<double>(config_.reference_batch);
    const double beta2 = std::pow(config_.beta2, share);
    first_product_ *= config_.beta1;
    second_product_ *= beta2;
    for (size_t p = 0; p < state_.size(); ++p) {
      const Parameter& parameter = parameters.parameters()[p];
      auto& [weight, first, second] = state_[p];
      const at::Tensor gradient = to_float64(parameter.gradient) * gradient_factor;
      first = config_.beta1 * first + (1 - config_.beta1) * gradient;
      second = beta2 * second + (1 - beta2) * gradient * gradient;
      const bool decays =
          parameter.info.kind == ParameterKind::embedding || parameter.info.kind == ParameterKind::linear;
      if (decays) weight = weight * (1 - schedule_rate * config_.weight_decay * share);
      weight =
          weight - rate * (first / (1 - first_product_)) / (at::sqrt(second / (1 - second_product_)) + config_.epsilon);
    }
  }

  double largest_difference(const ParameterStore& parameters) const {
    double largest = 0;
    for (size_t p = 0; p < state_.size(); ++p) {
      const at::Tensor weight = to_float64(parameters.master(parameters.parameters()[p]));
      largest = std::max(largest, (weight - state_[p].weight).abs().max().item<double>());
    }
    return largest;
  }

 private:
  struct State {
    at::Tensor weight, first, second;
  };

  static at::Tensor to_float64(const at::Tensor& tensor) { return tensor.to(at::kCPU).to(at::kDouble); }

  OptimizerConfig config_;
  std::vector<State> state_;
  double first_product_ = 1, second_product_ = 1;
};

// The rate factors follow no rule here, as under a policy with its own factors. The last batch is smaller, and its rate
// is lower at first.
TEST_F(TrainerSwitch, Beta2AndWeightDecayFollowTheBatch) {
  RunConfig begin = config({ranks(1, 1, 1), scaled});
  begin.optimizer.schedule = LearningRateSchedule::constant;
  begin.optimizer.weight_decay = 0.5;
  const std::vector<Move> moves = {{2, {global_batch(32)}, 1.75}, {4, {global_batch(4)}, 0.75}};
  const double lr = begin.optimizer.lr;
  train_on_every_rank(begin, [&](Trainer& trainer, World&, const Dataset&) {
    ReferenceAdamW reference(trainer.parameters(), begin.optimizer);
    double ratio = 1;  // of the second moments
    for (int64_t step = 1; step <= 7; ++step) {
      for (const Move& move : moves) {
        if (move.after_step == step) trainer.announce(intent_of(begin, move));
      }
      const auto batch = static_cast<double>(trainer.configuration().global_batch);
      const StepRecord record = trainer.step();
      ratio = 1 - (1 - ratio) * std::pow(begin.optimizer.beta2, batch / 16);
      const double rate = lr * record.rate_factor.value() * std::sqrt(std::min(1.0, ratio));
      EXPECT_DOUBLE_EQ(record.lr, rate) << "step " << step;
      reference.follow(trainer.parameters(), clip_factor(record.grad_norm, begin.train.clip_norm), batch, rate, lr);
      // Weights are below 2, and each of the seven updates rounds them to fp32 twice, by 6e-8 at most.
      EXPECT_LT(reference.largest_difference(trainer.parameters()), 1e-6) << "step " << step;
      if (trainer.switch_if_due()) ratio *= static_cast<double>(trainer.configuration().global_batch) / batch;
    }
    EXPECT_LT(ratio, 1) << "the ramp was under way";
    EXPECT_DOUBLE_EQ(trainer.state().optimizer.find("beta2_product").value(),
                     std::pow(begin.optimizer.beta2, (2 * 8 + 2 * 32 + 3 * 4) / 16.0));
  });
}

TEST_F(TrainerSwitch, AResumedRunGoesOnWithItsProductOfBeta2) {
  RunConfig begin = config({ranks(1, 1, 1), scaled});
  begin.optimizer.schedule = LearningRateSchedule::constant;  // others depend on the batch
  std::optional<Snapshot> snapshot;
  std::vector<double> losses;
  double product = 1;
  train_on_every_rank(begin, [&](Trainer& trainer, World&, const Dataset&) {
    trainer.announce(intent_of(begin, {1, {global_batch(32)}, 1.5}));
    for (int step = 0; step < 5; ++step) {
      const double loss = trainer.step().loss;
      trainer.switch_if_due();
      if (step == 1) snapshot = take_snapshot(trainer);
      if (step > 1) losses.push_back(loss);
    }
    product = trainer.state().optimizer.find("beta2_product").value();
  });
  const RunConfig larger = with_changes(begin, {global_batch(32)});
  const auto resume = [&](const char* folder, const std::function<void(Trainer&, const Checkpoint&)>& body) {
    CheckpointWriter writer(folder_.path() / folder, 1);
    writer.write(Snapshot(*snapshot));
    writer.finish();
    const Checkpoint checkpoint(*writer.last_written());
    train_on_every_rank(larger, [&](Trainer& trainer, World&, const Dataset&) { body(trainer, checkpoint); });
  };
  resume("own", [&](Trainer& trainer, const Checkpoint& checkpoint) {
    trainer.restore(checkpoint);
    for (const double loss : losses) EXPECT_EQ(trainer.step().loss, loss);
    EXPECT_EQ(trainer.state().optimizer.find("beta2_product"), product);
  });
  std::string& state = snapshot->training_state;
  const size_t name = state.find("\"beta2_product\"");
  ASSERT_NE(name, std::string::npos);
  state.erase(name, state.find(',', name) + 1 - name);
  resume("damaged", [](Trainer& trainer, const Checkpoint& checkpoint) {
    EXPECT_THAT(user_error([&] { trainer.restore(checkpoint); }), ::testing::HasSubstr("lacks \"beta2_product\""));
  });
}

}  // namespace
}  // namespace copus
