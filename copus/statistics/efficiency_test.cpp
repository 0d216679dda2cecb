#include "copus/statistics/efficiency.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "copus/base/error.h"
#include "copus/statistics/learning_rate_scaling.h"
#include "copus/statistics/testing/infinity.h"

namespace copus {
namespace {

// Finds the batch between 1 and 1.2 million with the highest `value`, to one part in ten thousand.
double best_batch(const std::function<double(double)>& value) {
  double best = 1;
  for (int step = 0; step < 140000; ++step) {
    const double batch = std::pow(1.0001, step);
    if (value(batch) > value(best)) best = batch;
  }
  return best;
}

TEST(Efficiency, TheCriticalBatchIsCalibrated) { EXPECT_EQ(critical_batch({.calibration = 2}, 150, 0), 300); }

TEST(Efficiency, TheCriticalBatchIsBoundByTheUpdatesOfTheRunSoFar) {
  const CriticalBatchRule rule{.calibration = 2, .updates = 25};
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_DOUBLE_EQ(critical_batch(rule, infinity, 500), 20);
  EXPECT_DOUBLE_EQ(critical_batch(rule, 10, 500), 10) << "of 20 by the noise and 20 by the updates";
  EXPECT_NEAR(critical_batch(rule, 150, 1e9), 300, 1e-2);
  EXPECT_EQ(critical_batch(rule, 0, 500), 0);
  EXPECT_EQ(critical_batch(rule, 150, 0), 0) << "before the first sample any batch is as good as one of 1";
}

TEST(Efficiency, FallsWithTheBatchByPolluxFormula) {
  EXPECT_DOUBLE_EQ(statistical_efficiency(64, 100, 1), 101.0 / 164);
  EXPECT_DOUBLE_EQ(statistical_efficiency(64, 100, 16), 116.0 / 164);
  EXPECT_EQ(statistical_efficiency(16, 100, 16), 1);
  EXPECT_DOUBLE_EQ(statistical_efficiency(8, 100, 16), 116.0 / 108);  // a smaller batch is worth more
}

TEST(Efficiency, HasItsLimits) {
  // Noise alone makes every sample count alike; without noise a step is worth the same with any batch.
  EXPECT_EQ(statistical_efficiency(64, infinity, 16), 1);
  EXPECT_NEAR(statistical_efficiency(64, 1e12, 16), 1, 1e-10);
  EXPECT_DOUBLE_EQ(statistical_efficiency(64, 0, 16), 0.25);
  EXPECT_NEAR(statistical_efficiency(64, 1e-12, 16), 0.25, 1e-12);
  EXPECT_NEAR(statistical_efficiency(1e9, 1000, 1), 1001 / 1e9, 1e-11);
  EXPECT_THROW(statistical_efficiency(0, 100, 1), InternalError);
  EXPECT_THROW(statistical_efficiency(1, -1, 1), InternalError);
  EXPECT_THROW(statistical_efficiency(1, 1, 0), InternalError);
}

TEST(Goodput, IsThroughputTimesEfficiencyTimesALearningRate) {
  EXPECT_DOUBLE_EQ(goodput(50, 0.25, 2, 0), 12.5);
  EXPECT_DOUBLE_EQ(goodput(50, 0.25, 2, 0.5), 25);
  EXPECT_DOUBLE_EQ(goodput(50, 0.25, 2, 1), 50);
}

// The Goodput of a batch of 64 at 50 samples/s, with the critical batch as the learning rate's cap.
double goodput_of_64(double critical, double alpha) {
  return goodput(50, statistical_efficiency(64, critical, 16), rate_factor({0.5, 16}, 64, critical), alpha);
}

TEST(Goodput, HasItsLimits) {
  EXPECT_EQ(goodput_of_64(infinity, 0), 50);
  EXPECT_DOUBLE_EQ(goodput_of_64(infinity, 0.5), 100);
  EXPECT_DOUBLE_EQ(goodput_of_64(0, 0), 12.5);
  EXPECT_DOUBLE_EQ(goodput_of_64(0, 0.5), 12.5);  // without noise the learning rate does not grow either
}

// A step takes a + k B seconds, so T = B / (a + k B).
TEST(Goodput, IsHighestWhereTheoryPutsIt) {
  constexpr double a = 0.5;
  constexpr double k = 0.01;
  const auto throughput = [](double batch) { return batch / (a + k * batch); };
  for (const double critical : {20.0, 200.0, 2000.0}) {
    const auto best = [&](double alpha) {
      return best_batch([&](double batch) {
        return goodput(throughput(batch), statistical_efficiency(batch, critical, 1),
                       rate_factor({0.5, 1}, batch, critical), alpha);
      });
    };
    const double plain = std::sqrt(critical * a / k);
    EXPECT_NEAR(best(0), plain, 1e-3 * plain);
    // The learning rate grows with the root of B below the critical batch, which moves the optimum up to the critical
    // batch; beyond it the rate is constant.
    const double with_rate = std::max(critical, plain);
    EXPECT_NEAR(best(0.5), with_rate, 1e-3 * with_rate);
  }
}

}  // namespace
}  // namespace copus
