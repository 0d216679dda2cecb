#include "copus/report/smoothing.h"

#include <gtest/gtest.h>

#include <limits>

namespace copus {
namespace {

TEST(SmoothedValue, StartsAtTheFirstValue) {
  SmoothedValue smoothed(20);
  EXPECT_EQ(smoothed.value(), std::nullopt);
  smoothed.add(5.5);
  EXPECT_DOUBLE_EQ(*smoothed.value(), 5.5);
}

TEST(SmoothedValue, ForgetsOldValues) {
  SmoothedValue smoothed(3);  // each value weighs half as much as the next one
  for (const double value : {4.0, 2.0, 1.0}) smoothed.add(value);
  EXPECT_DOUBLE_EQ(*smoothed.value(), (4.0 / 4 + 2.0 / 2 + 1.0) / (1.0 / 4 + 1.0 / 2 + 1));
}

TEST(SmoothedValue, WindowOfOneIsTheLastValue) {
  SmoothedValue smoothed(1);
  for (const double value : {4.0, 2.0, 1.0}) smoothed.add(value);
  EXPECT_EQ(smoothed.value(), 1.0);
}

TEST(SmoothedValue, LeavesOutSkippedSteps) {
  SmoothedValue smoothed(20);
  smoothed.add(std::numeric_limits<double>::quiet_NaN());
  EXPECT_EQ(smoothed.value(), std::nullopt);
  smoothed.add(2);
  smoothed.add(std::numeric_limits<double>::infinity());
  EXPECT_DOUBLE_EQ(*smoothed.value(), 2);
}

}  // namespace
}  // namespace copus
