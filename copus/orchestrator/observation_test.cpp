#include "copus/orchestrator/observation.h"

#include <gtest/gtest.h>

#include <limits>

namespace copus {
namespace {

TEST(Observation, IsWhatTheRecordSays) {
  StepRecord record;
  EXPECT_EQ(observation_of(record).seconds_left, std::numeric_limits<double>::infinity());
  EXPECT_EQ(observation_of(record).share_done, std::nullopt);
  record.seconds_left = 7;
  record.share_done = 0.25;
  EXPECT_EQ(observation_of(record).seconds_left, 7);
  EXPECT_EQ(observation_of(record).share_done, 0.25);
}

}  // namespace
}  // namespace copus
