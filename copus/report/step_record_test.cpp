#include "copus/report/step_record.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace copus {
namespace {

TEST(StepRecord, WhatIsLeftOfARunFollowsFromItsLimits) {
  StepRecord record;
  record.consumed_tokens = 1000;
  record.elapsed_seconds = 10;
  RunConfig config;
  EXPECT_EQ(observation_of(record, config).seconds_left, std::numeric_limits<double>::infinity());
  config.train.max_tokens = 4000;
  EXPECT_EQ(observation_of(record, config).seconds_left, 30);
  config.train.max_seconds = 25;
  EXPECT_EQ(observation_of(record, config).seconds_left, 15);
  config.train.max_tokens = 500;
  EXPECT_EQ(observation_of(record, config).seconds_left, 0);
  EXPECT_EQ(observation_of(record, config).share_done, std::nullopt) << "an older log does not say";
  record.seconds_left = 7;
  record.share_done = 0.25;
  EXPECT_EQ(observation_of(record, config).seconds_left, 7) << "by the end that the run had then";
  EXPECT_EQ(observation_of(record, config).share_done, 0.25);
}

TEST(StepRecord, EvaluationIsDueByStepsAndByTokensWhateverTheBatch) {
  RunConfig config;
  config.train.sequence_length = 10;
  config.evaluate.interval = 4;
  config.evaluate.interval_tokens = 100;
  StepRecord record;
  std::vector<int64_t> due;
  for (const int64_t batch : {5, 4, 1, 2, 25, 3, 5}) {  // ends at 50, 90, 100, 120, 370, 400 and 450 tokens
    record.step += 1;
    record.global_batch = batch;
    record.consumed_tokens += 10 * batch;
    if (is_evaluation_due(record, config)) due.push_back(record.consumed_tokens);
  }
  EXPECT_EQ(due, (std::vector<int64_t>{100, 120, 370, 400}));
  config.evaluate = {.interval = 0, .interval_tokens = 0};
  EXPECT_FALSE(is_evaluation_due(record, config));
}

}  // namespace
}  // namespace copus
