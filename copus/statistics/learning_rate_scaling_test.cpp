#include "copus/statistics/learning_rate_scaling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <utility>

#include "copus/base/error.h"
#include "copus/statistics/testing/infinity.h"

namespace copus {
namespace {

// Checks a rule's limits as the noise scale goes to 0 and to infinity, and its values at 0 and infinity.
template <class Rule>
void expect_limits(Rule rule, double without_noise, double noise_alone) {
  EXPECT_DOUBLE_EQ(rule(0.0), without_noise);
  EXPECT_NEAR(rule(1e-9), without_noise, 1e-9);
  EXPECT_NEAR(rule(1e12), noise_alone, 1e-9);
  EXPECT_DOUBLE_EQ(rule(infinity), noise_alone);
}

TEST(LearningRateScaling, AtTheReferenceEveryRuleGivesOne) {
  for (const double noise_scale : {0.0, 1.0, 16.0, 1000.0, infinity}) {
    for (const double exponent : {0.0, 0.5, 1.0}) EXPECT_EQ(rate_factor({exponent, 16}, 16, noise_scale), 1);
  }
  EXPECT_DOUBLE_EQ(linear_factor(16, 16), 1);
}

TEST(LearningRateScaling, TheSquareRootEndsAtTheCriticalBatch) {
  const RateRule square_root{0.5, 16};
  EXPECT_DOUBLE_EQ(rate_factor(square_root, 64, 100), 2);
  EXPECT_DOUBLE_EQ(rate_factor(square_root, 100, 100), 2.5);
  EXPECT_DOUBLE_EQ(rate_factor(square_root, 6400, 100), 2.5);
  EXPECT_DOUBLE_EQ(rate_factor({0.5, 16, false}, 6400, 100), 20);  // without a cap
  // Beyond the critical batch the rate tuned at the reference batch stays. A smaller batch always gets a smaller rate.
  EXPECT_DOUBLE_EQ(rate_factor(square_root, 64, 4), 1);
  EXPECT_DOUBLE_EQ(rate_factor(square_root, 4, 1), 0.5);
  expect_limits([&](double critical) { return rate_factor(square_root, 64, critical); }, 1, 2);
  expect_limits([&](double critical) { return rate_factor(square_root, 4, critical); }, 0.5, 0.5);
}

TEST(LearningRateScaling, TheOtherRulesEndThereToo) {
  EXPECT_DOUBLE_EQ(rate_factor({1, 16}, 64, 100), 4);
  EXPECT_DOUBLE_EQ(rate_factor({1, 16}, 6400, 100), 6.25);
  EXPECT_DOUBLE_EQ(rate_factor({0, 16}, 6400, 100), 1);
}

// A critical batch that has moved: the rate reaches its new value without jumps.
TEST(LearningRateScaling, TheCapFollowsTheCriticalBatchInSmallSteps) {
  for (const double exponent : {0.5, 1.0}) {
    const RateRule rule{exponent, 8};
    for (const auto& [from, to] : {std::pair{20.0, 600.0}, {600.0, 20.0}, {20.0, 1.0}, {64.0, 9.0}}) {
      double cap = from, rate = rate_factor(rule, 64, cap);
      int decisions = 0;
      for (; cap != to; ++decisions) {
        ASSERT_LT(decisions, 100) << cap;
        cap = cap_towards(rule, 64, cap, to);
        const double next = rate_factor(rule, 64, cap);
        EXPECT_LE(std::abs(std::log(next / rate)), std::log1p(largest_rate_change) + 1e-12);
        EXPECT_GE((next - rate) * (to - from), 0) << "the wrong way";
        rate = next;
      }
      EXPECT_GT(decisions, 5);
      EXPECT_EQ(rate, rate_factor(rule, 64, to));
    }
  }
}

TEST(LearningRateScaling, ACapThatIsNotReachedMovesAtOnce) {
  const RateRule rule{0.5, 8};
  EXPECT_EQ(cap_towards(rule, 8, 8, 500), 500);  // the rate at the reference batch is 1 whatever the cap
  EXPECT_EQ(cap_towards(rule, 8, 500, 12), 12);
  EXPECT_EQ(cap_towards(rule, 64, 64, 500), 500);
  EXPECT_EQ(cap_towards({0, 8}, 64, 20, 500), 500);
}

TEST(LearningRateScaling, AFactorGoesOnWithItsCap) {
  for (const double exponent : {0.5, 1.0}) {
    const RateRule rule{exponent, 16};
    for (const double batch : {4.0, 16.0, 40.0, 64.0}) {
      const double factor = rate_factor(rule, batch, 40);
      EXPECT_NEAR(rate_factor(rule, batch, cap_of_factor(rule, factor)), factor, 1e-12);
    }
  }
  EXPECT_EQ(cap_of_factor({0, 16}, 1), 16);
  EXPECT_THROW(cap_of_factor({0.5, 16}, 0), InternalError);
}

TEST(LearningRateScaling, LinearDoesNotKnowNoise) {
  EXPECT_DOUBLE_EQ(linear_factor(64, 16), 4);
  EXPECT_DOUBLE_EQ(linear_factor(4, 16), 0.25);
  EXPECT_THROW(linear_factor(0, 16), InternalError);
  EXPECT_THROW(linear_factor(16, 0), InternalError);
}

// Half of a gradient's contribution is gone after the same number of samples in every batch.
TEST(LearningRateScaling, TheHalfLifeOfTheSecondMomentInSamplesStays) {
  const auto half_life = [](double beta2, double batch) { return batch * std::log(0.5) / std::log(beta2); };
  for (const double batch : {1.0, 16.0, 40.0, 4096.0}) {
    EXPECT_NEAR(half_life(scaled_beta2(0.95, batch, 16), batch) / half_life(0.95, 16), 1, 1e-12) << batch;
  }
  EXPECT_EQ(scaled_beta2(0.95, 16, 16), 0.95) << "to the last bit";
  EXPECT_EQ(scaled_beta2(0, 64, 16), 0);
  // Small values of 1 - beta2 grow in proportion to the batch, as the rule for Adam says.
  EXPECT_NEAR((1 - scaled_beta2(1 - 1e-6, 64, 16)) / 1e-6, 4, 1e-5);
  EXPECT_THROW(scaled_beta2(0.95, 16, 0), InternalError);
}

TEST(LearningRateScaling, TheDecayOfASampleStays) {
  for (const double exponent : {0.0, 0.5, 1.0}) {
    const RateRule rule{exponent, 16};
    for (const double batch : {1.0, 16.0, 40.0, 4096.0}) {
      const double rate = rate_factor(rule, batch, 100);
      EXPECT_NEAR(rate * weight_decay_factor(batch, 16, rate) / batch, 1 / 16.0, 1e-15) << batch;
    }
  }
  EXPECT_DOUBLE_EQ(weight_decay_factor(64, 16, rate_factor({0.5, 16}, 64, 100)), 2);
  EXPECT_EQ(weight_decay_factor(16, 16, 1), 1);
  EXPECT_THROW(weight_decay_factor(16, 16, 0), InternalError);
}

TEST(LearningRateScaling, AfterTheBatchShrinksItRampsUpAsTheSecondMomentGrows) {
  const double beta2 = 0.95, q = 0.25;
  double ratio = variance_ratio_after_switch(1, 64, 16);
  EXPECT_DOUBLE_EQ(ratio, q);
  for (int k = 1; k <= 200; ++k) {
    ratio = variance_ratio_after_update(ratio, beta2);
    EXPECT_NEAR(shrink_ramp_factor(ratio), std::sqrt(1 - (1 - q) * std::pow(beta2, k)), 1e-12) << k;
  }
  EXPECT_NEAR(shrink_ramp_factor(ratio), 1, 1e-4);
}

// Compares with Adam's own recursion. With the ramp's factor the length of an update, factor / sqrt(v), is immediately
// the one of the new batch's steady state, through several switches.
TEST(LearningRateScaling, TheRampKeepsTheLengthOfUpdates) {
  const double beta2 = 0.9, trace = 3;
  double batch = 64, second_moment = trace / batch, ratio = 1;
  for (const double next : {32.0, 8.0, 2.0}) {
    ratio = variance_ratio_after_switch(ratio, batch, next);
    batch = next;
    for (int k = 0; k < 5; ++k) {
      second_moment = beta2 * second_moment + (1 - beta2) * trace / batch;
      ratio = variance_ratio_after_update(ratio, beta2);
      EXPECT_NEAR(shrink_ramp_factor(ratio) / std::sqrt(second_moment), std::sqrt(batch / trace), 1e-9);
    }
  }
}

TEST(LearningRateScaling, AGrownBatchIsNotRamped) {
  const double ratio = variance_ratio_after_switch(1, 16, 64);
  EXPECT_DOUBLE_EQ(shrink_ramp_factor(ratio), 1);
  // Two switches, there and back before v has changed, leave nothing to ramp.
  EXPECT_DOUBLE_EQ(shrink_ramp_factor(variance_ratio_after_switch(ratio, 64, 16)), 1);
  EXPECT_THROW(variance_ratio_after_switch(1, 0, 16), InternalError);
}

}  // namespace
}  // namespace copus
