#include "copus/simulate/worth.h"

#include <gtest/gtest.h>

#include <cmath>

namespace copus {
namespace {

TEST(Worth, HyperbolaAndRootAreTheirFormulas) {
  for (const double critical : {3.0, 40.0}) {
    for (const double batch : {1.0, 3.0, 100.0}) {
      EXPECT_DOUBLE_EQ(worth_of(WorthShape::hyperbola, batch, critical, 0), critical / (critical + batch));
      EXPECT_DOUBLE_EQ(worth_of(WorthShape::root, batch, critical, 0), std::sqrt(critical / (critical + batch)));
    }
  }
}

TEST(Worth, TheMeasuredCurvesGoThroughTheirPoints) {
  const auto relative_to_8 = [](double batch, double noise_scale, double maturity) {
    const double critical = measured_calibration * noise_scale;
    return worth_of(WorthShape::measured, batch, critical, maturity) /
           worth_of(WorthShape::measured, 8, critical, maturity);
  };
  EXPECT_NEAR(relative_to_8(16, 22.7, 0), .912, 1e-12);
  EXPECT_NEAR(relative_to_8(64, 22.7, 0), .648, 1e-12);
  EXPECT_NEAR(relative_to_8(128, 22.7, 0), .495, 1e-12);
  EXPECT_NEAR(relative_to_8(32, 35, 1), .805, 1e-12);
  EXPECT_NEAR(relative_to_8(128, 35, 1), .615, 1e-12);
}

TEST(Worth, EveryShapeFallsFromOneWithoutAJump) {
  for (const WorthShape shape : {WorthShape::hyperbola, WorthShape::root, WorthShape::measured}) {
    for (const double maturity : {0.0, 0.4, 1.0}) {
      EXPECT_NEAR(worth_of(shape, 1e-6, 50, maturity), 1, 1e-6);
      double before = 1, batch_before = 1e-6;
      for (int i = 0; i < 120; ++i) {
        const double batch = 0.1 * std::pow(1.1, i);
        const double worth = worth_of(shape, batch, 50, maturity);
        EXPECT_LT(worth, before) << batch;
        EXPECT_GT(worth * batch, before * batch_before) << "a larger batch makes more progress a step";
        EXPECT_GT(worth, before * 0.88) << "no jump at " << batch;
        before = worth, batch_before = batch;
      }
    }
  }
}

TEST(Growth, IsItsFormula) {
  const Growth power{.family = GrowthFamily::power, .exponent = 0.5};
  EXPECT_DOUBLE_EQ(power.at(1), 1);
  EXPECT_DOUBLE_EQ(power.at(0), std::sqrt(0.01 / 1.01));
  const Growth saturating{.family = GrowthFamily::saturating, .time_constant = 0.2};
  EXPECT_DOUBLE_EQ(saturating.at(1), 1);
  EXPECT_DOUBLE_EQ(saturating.at(0.2), (1 - std::exp(-1)) / (1 - std::exp(-5)));
  EXPECT_DOUBLE_EQ(saturating.at(0), 0.03);
  const Growth falling{.family = GrowthFamily::falling_first, .exponent = 0.5, .excess = 9};
  EXPECT_DOUBLE_EQ(falling.at(0), 10 * power.at(0));
  EXPECT_LT(falling.at(0.15), falling.at(0));
  EXPECT_NEAR(falling.at(1), 1, 1e-9);
  const Growth jump{.family = GrowthFamily::decay_jump, .exponent = 0.5, .jump = 3};
  EXPECT_DOUBLE_EQ(jump.at(0.79), power.at(0.79));
  EXPECT_DOUBLE_EQ(jump.at(0.81), 3 * power.at(0.81));
}

// By the law, 1e10 tokens give a loss of 1.69 + 410.7 / 630.957 = 2.3409, and 1e9 tokens 1.69 + 410.7 / 331.131 =
// 2.9303.
TEST(Growth, KaplansCriticalBatchFollowsTheLoss) {
  EXPECT_DOUBLE_EQ(kaplan_critical_batch(1, 1e10), 1);
  EXPECT_NEAR(kaplan_critical_batch(0.1, 1e10), std::pow(2.3409 / 2.9303, 1 / 0.21), 1e-4);
  EXPECT_NEAR(kaplan_critical_batch(0, 1e10), std::pow(2.3409 / std::log(32000.0), 1 / 0.21), 1e-6);
}

TEST(Growth, OlmosCriticalBatchGoesThroughWhatWasMeasured) {
  EXPECT_NEAR(olmo_critical_batch(168e9 / 6e11, 6e11), 0.5, 1e-12);
  EXPECT_NEAR(olmo_critical_batch(503e9 / 6e11, 6e11), 1, 1e-12);
  EXPECT_DOUBLE_EQ(olmo_critical_batch(1, 6e11), 1);
  EXPECT_LT(olmo_critical_batch(0.01, 6e11), 0.1);
}

}  // namespace
}  // namespace copus
