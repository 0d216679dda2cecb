#include "copus/orchestrator/learning_rate/learning_rate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "copus/base/error.h"

namespace copus {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// A run of 100 steps of 10 tokens each, at a peak rate of 1.
TrainConfig hundred_steps() {
  TrainConfig train;
  train.sequence_length = 5;
  train.global_batch = 2;
  train.max_steps = 100;
  return train;
}

TrainConfig hundred_seconds() {
  TrainConfig train;
  train.max_seconds = 100;
  return train;
}

OptimizerConfig schedule(LearningRateSchedule kind, double warmup, double decay = 0.2) {
  OptimizerConfig optimizer;
  optimizer.lr = 1;
  optimizer.min_lr_ratio = 0.1;
  optimizer.schedule = kind;
  optimizer.warmup_tokens = warmup;
  optimizer.decay_tokens = decay;
  return optimizer;
}

TEST(LimitInTokens, IsTheFirstLimitOrNoneAndNeverOverflows) {
  TrainConfig train = hundred_steps();
  EXPECT_EQ(limit_in_tokens(train), 1000);
  train.max_tokens = 600;
  EXPECT_EQ(limit_in_tokens(train), 600);
  EXPECT_EQ(limit_in_tokens(hundred_seconds()), 0);
  train.max_steps = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(limit_in_tokens(train), 600);
  train.max_tokens = 0;
  EXPECT_GT(limit_in_tokens(train), std::numeric_limits<int64_t>::max() - 10);
  EXPECT_EQ(LearningRate(schedule(LearningRateSchedule::cosine, 0), train).at({10, 0}), 1);
}

TEST(LearningRate, WarmsUpLinearlyAndTheFirstStepCounts) {
  const LearningRate in_tokens(schedule(LearningRateSchedule::constant, 100), hundred_steps());
  const LearningRate in_shares(schedule(LearningRateSchedule::constant, 0.1), hundred_steps());
  for (const LearningRate& rate : {in_tokens, in_shares}) {
    EXPECT_DOUBLE_EQ(rate.at({10, 0}), 0.1);
    EXPECT_DOUBLE_EQ(rate.at({50, 0}), 0.5);
    EXPECT_DOUBLE_EQ(rate.at({100, 0}), 1);
    EXPECT_DOUBLE_EQ(rate.at({1000, 0}), 1);
  }
}

TEST(LearningRate, CosineFallsToTheMinimumAtTheLastStep) {
  const LearningRate rate(schedule(LearningRateSchedule::cosine, 0.1), hundred_steps());
  EXPECT_DOUBLE_EQ(rate.at({100, 0}), 1);
  EXPECT_DOUBLE_EQ(rate.at({550, 0}), 0.55);
  EXPECT_DOUBLE_EQ(rate.at({1000, 0}), 0.1);
  EXPECT_DOUBLE_EQ(rate.at({2000, 0}), 0.1);
}

TEST(LearningRate, WsdIsStableThenDecaysLinearly) {
  const LearningRate in_tokens(schedule(LearningRateSchedule::wsd, 0, 200), hundred_steps());
  const LearningRate in_shares(schedule(LearningRateSchedule::wsd, 0, 0.2), hundred_steps());
  for (const LearningRate& rate : {in_tokens, in_shares}) {
    EXPECT_DOUBLE_EQ(rate.at({10, 0}), 1);
    EXPECT_DOUBLE_EQ(rate.at({800, 0}), 1);
    EXPECT_NEAR(rate.at({900, 0}), 0.55, 1e-12);
    EXPECT_NEAR(rate.at({1000, 0}), 0.1, 1e-12);
  }
}

TEST(LearningRate, ThePhaseIsThatOfTheRate) {
  const OptimizerConfig wsd = schedule(LearningRateSchedule::wsd, 0.1, 0.2);
  for (const auto& [rate, unit] :
       {std::pair{LearningRate(wsd, hundred_steps()), 10.0}, std::pair{LearningRate(wsd, hundred_seconds()), 1.0}}) {
    for (int64_t step = 1; step <= 100; ++step) {
      const double done = static_cast<double>(step) * unit;
      const RunProgress progress{static_cast<int64_t>(done), done};
      const bool is_highest = rate.at(progress) == 1;
      const SchedulePhase lower = step < 50 ? SchedulePhase::warm_up : SchedulePhase::decay;
      EXPECT_EQ(rate.phase(progress), is_highest ? SchedulePhase::main : lower) << step;
    }
  }
}

TEST(LearningRate, CosineAndConstantHaveNoPhaseOfDecay) {
  for (const LearningRateSchedule kind : {LearningRateSchedule::cosine, LearningRateSchedule::constant}) {
    const LearningRate rate(schedule(kind, 0.1), hundred_steps());
    EXPECT_EQ(rate.phase({99, 0}), SchedulePhase::warm_up);
    EXPECT_EQ(rate.phase({100, 0}), SchedulePhase::main);
    EXPECT_EQ(rate.phase({1000, 0}), SchedulePhase::main);
  }
}

TEST(LearningRate, ARunLimitedByTimeAloneIsClockedBySeconds) {
  const LearningRate rate(schedule(LearningRateSchedule::wsd, 0.1, 0.2), hundred_seconds());
  EXPECT_DOUBLE_EQ(rate.at({123, 5}), 0.5);
  EXPECT_DOUBLE_EQ(rate.at({123, 50}), 1);
  EXPECT_NEAR(rate.at({123, 90}), 0.55, 1e-12);
  EXPECT_NEAR(rate.at({123, 101}), 0.1, 1e-12);
}

TEST(LearningRate, AWarmUpInTokensHoldsInARunLimitedByTime) {
  const LearningRate rate(schedule(LearningRateSchedule::cosine, 1000), hundred_seconds());
  EXPECT_DOUBLE_EQ(rate.at({500, 30}), 0.5);
  EXPECT_NEAR(rate.at({2000, 50}), 0.55, 1e-12);
}

TEST(LearningRate, TokensDecideWhenBothTokensAndTimeAreLimited) {
  TrainConfig train = hundred_steps();
  train.max_seconds = 1;
  const LearningRate rate(schedule(LearningRateSchedule::cosine, 0), train);
  EXPECT_DOUBLE_EQ(rate.at({500, 0.99}), 0.55);
}

TEST(LearningRate, TheNearerOfStepsAndTokensIsTheLimit) {
  TrainConfig train = hundred_steps();
  EXPECT_EQ(limit_in_tokens(train), 1000);
  train.max_tokens = 400;
  EXPECT_EQ(limit_in_tokens(train), 400);
  train.max_steps = 0;
  EXPECT_EQ(limit_in_tokens(train), 400);
  train.max_tokens = 0;
  EXPECT_EQ(limit_in_tokens(train), 0);
}

TEST(LearningRate, RefusesSchedulesThatCannotBeClocked) {
  EXPECT_THAT([] { LearningRate(schedule(LearningRateSchedule::wsd, 0, 500), hundred_seconds()); },
              ThrowsMessage<UserError>(HasSubstr("optimizer.decay_tokens")));
  EXPECT_THAT([] { LearningRate(schedule(LearningRateSchedule::wsd, 0.9, 0.2), hundred_steps()); },
              ThrowsMessage<UserError>(HasSubstr("longer than the run of 1000 tokens")));
  EXPECT_THAT([] { LearningRate(schedule(LearningRateSchedule::cosine, 2000), hundred_steps()); },
              ThrowsMessage<UserError>(HasSubstr("optimizer.warmup_tokens")));
  EXPECT_THAT([] { LearningRate(schedule(LearningRateSchedule::cosine, 0), TrainConfig{}); },
              ThrowsMessage<UserError>(HasSubstr("train.max_steps")));
}

}  // namespace
}  // namespace copus
