#include "copus/record/batch_worth.h"

#include <gtest/gtest.h>

#include <cmath>

namespace copus {
namespace {

TEST(BatchWorth, FollowsFromTheRunsConfiguration) {
  JobConfig config;
  config.noise_scale.calibration = 3;
  config.noise_scale.critical_updates = 0;
  config.train.global_batch = 10;
  config.adapt.alpha = 0;
  EXPECT_EQ(BatchWorth(config).critical_batch(20, 1000), 60);
  EXPECT_EQ(BatchWorth(config).goodput(10, 2, 60, 5), 5) << "in the reference batch each sample counts as one";
  EXPECT_EQ(BatchWorth(config).goodput(80, 2, 60, 5), 40 * 70.0 / 140) << "(B_c + B_ref) / (B_c + B) of each";
  config.adapt.alpha = 0.5;
  EXPECT_DOUBLE_EQ(BatchWorth(config).goodput(80, 2, 60, 5), 5 * 40 * 70.0 / 140) << "times the rate's factor";
  EXPECT_DOUBLE_EQ(BatchWorth(config).goodput_of_a_sample(80, 60, 5), 5 * 70.0 / 140);
  config.optimizer.reference_batch = 20;
  EXPECT_DOUBLE_EQ(BatchWorth(config).goodput_of_a_sample(80, 60, 1), 80.0 / 140);
  config.noise_scale.critical_updates = 10;
  EXPECT_DOUBLE_EQ(BatchWorth(config).critical_batch(20, 600), 30) << "bound by the updates made";
}

}  // namespace
}  // namespace copus
