#include "copus/train/step/step_completion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <optional>

#include "copus/base/error.h"
#include "copus/base/testing/test_support.h"

namespace copus {
namespace {

using ::testing::HasSubstr;

constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

class StepCompletionTest : public ::testing::Test {
 protected:
  StepCompletionTest() {
    config_.train.sequence_length = 16;
    config_.train.global_batch = 8;
    config_.train.micro_batch = 2;
    config_.train.max_steps = 1000;
    state_.configuration = configuration_of(config_);
    state_.rate_factor = 1;
  }

  StepRecord complete(const StepAgreement& agreed) {
    const StepCompletion completion(config_);
    return completion.complete(agreed, completion.update_of(agreed, state_), /*measures_noise=*/true, state_);
  }

  static StepAgreement sound() {
    StepAgreement agreed;
    agreed.loss_tokens = 120;
    agreed.loss = 5;
    agreed.squared_norm = 4;
    agreed.small_squared_norms = 8;
    agreed.seconds = 0.5;
    return agreed;
  }
  static StepAgreement masked() {
    StepAgreement agreed = sound();
    agreed.loss_tokens = 0;
    agreed.loss = not_a_number;
    agreed.squared_norm = agreed.small_squared_norms = 0;
    return agreed;
  }
  static StepAgreement failed() {
    StepAgreement agreed = sound();
    agreed.loss = not_a_number;
    return agreed;
  }

  RunConfig config_;
  TrainingState state_;
};

// A step takes half a second. Tokens, time or both limit the run.
TEST_F(StepCompletionTest, ARecordTellsHowMuchOfTheRunIsDoneAndLeft) {
  StepRecord record = complete(sound());
  EXPECT_EQ(record.share_done, 0.001);
  EXPECT_DOUBLE_EQ(record.seconds_left.value(), 999 * 0.5);
  config_.train.max_seconds = 10;
  record = complete(sound());
  EXPECT_EQ(record.share_done, 0.002) << "by tokens where they are limited";
  EXPECT_EQ(record.seconds_left, 9);
  config_.train.max_steps = 0;
  record = complete(sound());
  EXPECT_EQ(record.share_done, 0.15);
  EXPECT_EQ(record.seconds_left, 8.5);
}

// Survivors complete a step from its numbers, and may not know when the last rank had them.
TEST_F(StepCompletionTest, TheRateOfARunThatTimeLimitsIsDecidedWithTheNumbers) {
  config_.train.max_steps = 0;
  config_.train.max_seconds = 10;
  config_.optimizer.schedule = LearningRateSchedule::cosine;
  const auto rate = [&](double seconds_of_rank_0, double seconds) {
    StepAgreement agreed = sound();
    agreed.seconds_of_rank_0 = seconds_of_rank_0;
    agreed.seconds = seconds;
    return StepCompletion(config_).update_of(agreed, state_)->learning_rate;
  };
  EXPECT_EQ(rate(2, 2), rate(2, 5));
  EXPECT_GT(rate(2, 5), rate(4, 5));
}

TEST_F(StepCompletionTest, AStepWithoutLossLearnsNothingAndIsNoneThatFailed) {
  complete(sound());
  const TrainingState before = state_;
  EXPECT_EQ(StepCompletion(config_).update_of(masked(), state_), std::nullopt);
  const StepRecord record = complete(masked());
  EXPECT_TRUE(record.lacks_loss());
  EXPECT_FALSE(record.skipped());
  EXPECT_EQ(record.loss_tokens, 0);
  EXPECT_TRUE(std::isnan(record.loss));
  EXPECT_EQ(record.grad_norm, 0);
  EXPECT_EQ(record.clipped, std::nullopt);
  EXPECT_EQ(record.small_batch, std::nullopt);
  EXPECT_EQ(record.step, 2);
  EXPECT_EQ(record.consumed_samples, 16);
  EXPECT_EQ(state_.optimizer_steps, before.optimizer_steps);
  EXPECT_EQ(state_.skipped_steps, 0);
  EXPECT_EQ(state_.skipped_samples, 0);
  EXPECT_EQ(state_.noise_average, before.noise_average);
  // This step's samples do not reduce the weight of earlier noise measurements.
  state_.step = before.step, state_.consumed_samples = before.consumed_samples;
  state_.observed_samples = before.observed_samples;
  complete(sound());
  const NoiseAverage expected = state_.noise_average;
  state_ = before;
  complete(masked());
  complete(sound());
  EXPECT_EQ(state_.noise_average, expected);
}

TEST_F(StepCompletionTest, StepsWithoutLossNeitherEndARunNorExcuseOneThatDiverges) {
  for (int step = 0; step < 50; ++step) complete(masked());
  EXPECT_EQ(state_.skipped_in_a_row, 0);
  EXPECT_EQ(state_.skipped_steps, 0);
  for (int step = 0; step < 9; ++step) {
    complete(failed());
    complete(masked());
  }
  EXPECT_EQ(state_.skipped_in_a_row, 9);
  EXPECT_THAT(user_error([&] { complete(failed()); }), HasSubstr("diverged"));
}

}  // namespace
}  // namespace copus
