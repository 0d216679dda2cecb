#include "copus/statistics/learning_rate_scaling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "copus/base/error.h"

namespace copus {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

// What a rule tends to for a vanishing and for a boundless noise scale, and what it is at these two themselves.
template <class Rule>
void expect_limits(Rule rule, double without_noise, double noise_alone) {
  EXPECT_DOUBLE_EQ(rule(0.0), without_noise);
  EXPECT_NEAR(rule(1e-9), without_noise, 1e-9);
  EXPECT_NEAR(rule(1e12), noise_alone, 1e-9);
  EXPECT_DOUBLE_EQ(rule(infinity), noise_alone);
}

TEST(LearningRateScaling, AtTheReferenceEveryRuleGivesOne) {
  for (const double noise_scale : {0.0, 1.0, 16.0, 1000.0, infinity}) {
    EXPECT_DOUBLE_EQ(capped_square_root_factor(16, noise_scale, 16), 1);
    EXPECT_DOUBLE_EQ(adascale_factor(16, noise_scale, 16), 1);
    EXPECT_DOUBLE_EQ(surge_factor(16, noise_scale, 16), 1);
  }
  EXPECT_DOUBLE_EQ(linear_factor(16, 16), 1);
}

TEST(LearningRateScaling, TheSquareRootEndsAtTheCriticalBatch) {
  EXPECT_DOUBLE_EQ(capped_square_root_factor(64, 100, 16), 2);
  EXPECT_DOUBLE_EQ(capped_square_root_factor(100, 100, 16), 2.5);
  EXPECT_DOUBLE_EQ(capped_square_root_factor(6400, 100, 16), 2.5);
  // What was tuned at the reference stays, even beyond the critical batch; a smaller batch always gets less.
  EXPECT_DOUBLE_EQ(capped_square_root_factor(64, 4, 16), 1);
  EXPECT_DOUBLE_EQ(capped_square_root_factor(4, 1, 16), 0.5);
  expect_limits([](double critical) { return capped_square_root_factor(64, critical, 16); }, 1, 2);
  expect_limits([](double critical) { return capped_square_root_factor(4, critical, 16); }, 0.5, 0.5);
}

TEST(LearningRateScaling, LinearDoesNotKnowNoise) {
  EXPECT_DOUBLE_EQ(linear_factor(64, 16), 4);
  EXPECT_DOUBLE_EQ(linear_factor(4, 16), 0.25);
  EXPECT_THROW(linear_factor(0, 16), InternalError);
  EXPECT_THROW(linear_factor(16, 0), InternalError);
}

TEST(LearningRateScaling, AdaScaleIsLinearWhereNoiseRulesAndEndsAtItsGain) {
  EXPECT_DOUBLE_EQ(adascale_factor(64, 32, 16), 64.0 * (32 + 16) / (16 * (32 + 64)));
  expect_limits([](double noise_scale) { return adascale_factor(64, noise_scale, 16); }, 1, 4);
  EXPECT_NEAR(adascale_factor(1e12, 32, 16), 1 + 32.0 / 16, 1e-3);
}

TEST(LearningRateScaling, SurgeIsHighestAtTheNoiseScale) {
  const auto rate = [](double batch) { return 2 / (std::sqrt(32 / batch) + std::sqrt(batch / 32)); };
  for (const double batch : {1.0, 8.0, 32.0, 50.0, 4096.0}) {
    EXPECT_NEAR(surge_factor(batch, 32, 16), rate(batch) / rate(16), 1e-12) << batch;
  }
  EXPECT_GT(surge_factor(32, 32, 16), surge_factor(31, 32, 16));
  EXPECT_GT(surge_factor(32, 32, 16), surge_factor(33, 32, 16));
  // Rises like the square root where noise rules, falls like it where there is none.
  expect_limits([](double noise_scale) { return surge_factor(64, noise_scale, 16); }, 0.5, 2);
}

}  // namespace
}  // namespace copus
