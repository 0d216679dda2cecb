#include "copus/record/batch_worth.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

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

// With measured critical batches the noise scale counts as far as they show that it does.
TEST(BatchWorth, FollowsTheLawOfMeasuredCriticalBatches) {
  JobConfig config;
  config.train.sequence_length = 100;
  // In tokens, grown by the root of the tokens read, while the noise scale fell and rose.
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

// Draws exist where the critical batch follows a law, and spread around it as the measurements do.
TEST(BatchWorth, DrawsCriticalBatchesAroundTheLaw) {
  JobConfig config;
  config.train.sequence_length = 100;
  config.noise_scale.critical_batches = {{1e6, 4e4, 3e4, 0.05}, {4e6, 5e3, 6e4, 0.05}};
  EXPECT_TRUE(BatchWorth(config).draw_critical_batches(300, 0.1, 1.6e5).empty()) << "two give a factor";
  config.noise_scale.critical_batches.push_back({1.6e7, 3e4, 1.2e5, 0.05});
  const auto draws = [&](double noise_deviation) {
    return BatchWorth(config).draw_critical_batches(300, noise_deviation, 1.6e5);
  };
  const std::vector<double> narrow = draws(0);
  ASSERT_EQ(narrow.size(), 20U);
  EXPECT_TRUE(std::ranges::is_sorted(narrow));
  EXPECT_EQ(narrow, draws(0));
  const double law = BatchWorth(config).critical_batch(300, 1.6e5);
  EXPECT_NEAR(narrow[9] * narrow[10], law * law, 1e-6 * law * law) << "the law is in the middle";
  for (MeasuredCriticalBatch& measured : config.noise_scale.critical_batches) measured.deviation = 1;
  const std::vector<double> wide = draws(0);
  EXPECT_GT(std::log(wide[17] / wide[2]), 2 * std::log(narrow[17] / narrow[2]));
  const std::vector<double> noisy = draws(1);
  EXPECT_GT(noisy[17] / noisy[2], wide[17] / wide[2]) << "the law follows the noise scale a little";
  config.noise_scale.critical_updates = 1000;
  for (const double draw : draws(0)) EXPECT_LT(draw, 160) << "bound by the updates made";
}

}  // namespace
}  // namespace copus
