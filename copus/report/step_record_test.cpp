#include "copus/report/step_record.h"

#include <gtest/gtest.h>

#include <limits>

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
}

}  // namespace
}  // namespace copus
