#include "copus/record/batch_worth.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

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

TEST(BatchWorth, TwoMeasuredCriticalBatchesGiveAFactor) {
  JobConfig config;
  config.noise_scale.critical_batches = {{1e6, 4e4, 1.2e5, 0.1}, {4e6, 1e4, 1.2e5, 0.1}};
  EXPECT_DOUBLE_EQ(BatchWorth(config).critical_batch(20, 1000), 120) << "the mean of ln 3 and ln 12";
  config.noise_scale.critical_batches[1].deviation = 0.2;
  EXPECT_NEAR(BatchWorth(config).critical_batch(20, 1000), 20 * std::exp((4 * std::log(3) + std::log(12)) / 5), 1e-9);
}

TEST(BatchWorth, MeasurementsThatTellLittleGiveNoLaw) {
  JobConfig config;
  config.noise_scale.critical_batches = {{1e6, 4e4, 8e4, 0.1}, {4e6, 5e3, 1e4, 0.1}, {1.6e7, 3e4, 6e4, 1.01}};
  EXPECT_DOUBLE_EQ(BatchWorth(config).critical_batch(20, 1e5), 40) << "twice the noise scale, as in all three";
  config.noise_scale.critical_batches[2].deviation = 0.99;
  EXPECT_NE(BatchWorth(config).critical_batch(20, 1e5), 40);
}

// The result depends on the noise scale only as far as the measured critical batches do.
TEST(BatchWorth, FollowsTheLawOfMeasuredCriticalBatches) {
  JobConfig config;
  config.train.sequence_length = 100;
  // In tokens. The critical batch grows with the square root of the tokens read, while the noise scale falls and rises.
  config.noise_scale.critical_batches = {{1e6, 4e4, 3e4, 0.05}, {4e6, 5e3, 6e4, 0.05}, {1.6e7, 3e4, 1.2e5, 0.05}};
  const BatchWorth worth(config);
  EXPECT_NEAR(worth.critical_batch(300, 1.6e5), 1200, 120) << "in samples";
  EXPECT_NEAR(worth.critical_batch(300, 6.4e5), 2400, 300);
  EXPECT_NEAR(worth.critical_batch(600, 6.4e5) / worth.critical_batch(300, 6.4e5), 1, 0.07);
  EXPECT_TRUE(std::isfinite(worth.critical_batch(0, 0)));
  EXPECT_TRUE(std::isfinite(worth.critical_batch(std::numeric_limits<double>::infinity(), 1000)));
  config.noise_scale.critical_updates = 1000;
  EXPECT_NEAR(1 / BatchWorth(config).critical_batch(300, 1.6e5), 1 / worth.critical_batch(300, 1.6e5) + 1 / 160.0,
              1e-9);
}

}  // namespace
}  // namespace copus
