#include "copus/statistics/compared/paired_difference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "copus/base/error.h"

namespace copus {
namespace {

// The differences are 1, 2 and 6: mean 3, standard deviation sqrt(7), standard error sqrt(7/3). With two degrees of
// freedom the quantile of p has the closed form (2p - 1) / sqrt(2 p (1 - p)).
TEST(PairedDifference, IsTheClosedFormOfThreePairs) {
  const PairedDifference result = paired_difference(std::vector<double>{11, 22, 36}, std::vector<double>{10, 20, 30});
  const auto quantile = [](double p) { return (2 * p - 1) / std::sqrt(2 * p * (1 - p)); };
  const double error = std::sqrt(7.0 / 3.0);
  EXPECT_EQ(result.pairs, 3);
  EXPECT_DOUBLE_EQ(result.mean, 3);
  EXPECT_DOUBLE_EQ(result.standard_deviation.value(), std::sqrt(7.0));
  EXPECT_NEAR(result.low.value(), 3 - quantile(0.975) * error, 1e-5);
  EXPECT_NEAR(result.high.value(), 3 + quantile(0.975) * error, 1e-5);
  EXPECT_NEAR(result.detectable.value(), (quantile(0.975) + quantile(0.8)) * error, 1e-5);
}

TEST(PairedDifference, WhatAllPairsShareCancels) {
  const PairedDifference result = paired_difference(std::vector<double>{1, 5, 9}, std::vector<double>{3, 7, 11});
  EXPECT_EQ(result.mean, -2);
  EXPECT_EQ(result.low, -2);
  EXPECT_EQ(result.high, -2);
  EXPECT_EQ(result.detectable, 0);
}

TEST(PairedDifference, OnePairShowsNoSpread) {
  const PairedDifference result = paired_difference(std::vector<double>{3}, std::vector<double>{1});
  EXPECT_EQ(result.mean, 2);
  EXPECT_FALSE(result.standard_deviation || result.low || result.high || result.detectable);
  EXPECT_THROW(paired_difference({}, {}), InternalError);
  EXPECT_THROW(paired_difference(std::vector<double>{1}, std::vector<double>{1, 2}), InternalError);
}

// Draws experiments of six pairs whose true difference is known. 95 % of their intervals hold it. If the true
// difference is what the true spread makes detectable, about 80 % of the intervals exclude 0. The test allows six
// standard errors of these shares, and 0.03 more for the power, whose formula is an approximation.
TEST(PairedDifference, IntervalAndPowerAreWhatTheySay) {
  constexpr unsigned seed = 7;
  SCOPED_TRACE(seed);
  std::mt19937_64 generator(seed);
  std::normal_distribution<double> normal;
  constexpr int experiments = 4000, pairs = 6;
  const double scale = 0.05;
  const double effect = (2.570582 + 0.919544) * scale / std::sqrt(pairs);  // t(0.975, 5) and t(0.8, 5), from tables
  int covered = 0, found = 0;
  for (int experiment = 0; experiment < experiments; ++experiment) {
    std::vector<double> ours, reference;
    for (int pair = 0; pair < pairs; ++pair) {
      reference.push_back(3 + normal(generator));
      ours.push_back(reference.back() + effect + scale * normal(generator));
    }
    const PairedDifference result = paired_difference(ours, reference);
    covered += *result.low <= effect && effect <= *result.high;
    found += *result.low > 0;
  }
  EXPECT_NEAR(covered / double{experiments}, 0.95, 6 * std::sqrt(0.95 * 0.05 / experiments));
  EXPECT_NEAR(found / double{experiments}, 0.8, 0.03 + 6 * std::sqrt(0.8 * 0.2 / experiments));
}

}  // namespace
}  // namespace copus
