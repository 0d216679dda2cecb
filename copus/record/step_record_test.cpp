#include "copus/record/step_record.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace copus {
namespace {

TEST(StepRecord, WhatIsLeftOfARunFollowsFromItsLimits) {
  TrainConfig limits;
  EXPECT_EQ(seconds_left(limits, 1000, 12, 2), std::numeric_limits<double>::infinity());
  limits.max_tokens = 4000;
  EXPECT_EQ(seconds_left(limits, 1000, 12, 2), 30) << "pauses do not repeat";
  limits.max_seconds = 25;
  EXPECT_EQ(seconds_left(limits, 1000, 12, 2), 13);
  limits.max_tokens = 500;
  EXPECT_EQ(seconds_left(limits, 1000, 12, 2), 0);
}

TEST(StepRecord, EvaluationIsDueByStepsAndByTokensWhateverTheBatch) {
  RunConfig config;
  config.train.sequence_length = 10;
  config.evaluate.interval = 4;
  config.evaluate.interval_tokens = 100;
  StepRecord record;
  std::vector<int64_t> due;
  for (const int64_t batch : {5, 4, 1, 2, 25, 3, 5}) {  // the steps end at 50, 90, 100, 120, 370, 400 and 450 tokens
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
