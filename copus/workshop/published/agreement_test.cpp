#include "copus/workshop/published/agreement.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace copus {
namespace {

TEST(Agreement, KendallsTauCountsPairs) {
  const std::vector<double> a = {1, 2, 3, 4};
  EXPECT_DOUBLE_EQ(kendall_tau(a, std::vector<double>{2, 4, 6, 9}), 1);
  EXPECT_DOUBLE_EQ(kendall_tau(a, std::vector<double>{9, 7, 5, 3}), -1);
  EXPECT_DOUBLE_EQ(kendall_tau(a, std::vector<double>{1, 3, 2, 4}), 4.0 / 6);
  // With one tie in b: 5 pairs agree, out of 6 untied pairs in a and 5 in b.
  EXPECT_DOUBLE_EQ(kendall_tau(a, std::vector<double>{1, 2, 2, 4}), 5 / std::sqrt(30.0));
  EXPECT_TRUE(std::isnan(kendall_tau(a, std::vector<double>{1, 1, 1, 1})));
  EXPECT_TRUE(std::isnan(kendall_tau(std::vector<double>{1}, std::vector<double>{1})));
}

TEST(Agreement, RegretIsWhatTheChoiceLoses) {
  EXPECT_DOUBLE_EQ(top1_regret(std::vector<double>{1, 3, 2}, std::vector<double>{10, 8, 9}), 0.2);
  EXPECT_DOUBLE_EQ(top1_regret(std::vector<double>{3, 1}, std::vector<double>{10, 8}), 0);
}

TEST(Agreement, TheFitFindsBothFactorsDespiteOutliers) {
  std::vector<FitSample> samples;
  for (const double communication : {0.0, 0.5, 1.0, 2.0, 4.0}) {
    const StepTimeParts parts{.compute = 2, .tensor_communication = communication};
    samples.push_back({parts, 1.3 * 2 + 0.6 * communication, 1});
  }
  samples.push_back({{.compute = 1}, 50, 1});
  const FittedConstants constants = fit_constants(samples);
  EXPECT_NEAR(constants.compute, 1.3, 0.005);
  EXPECT_NEAR(constants.communication, 0.6, 0.005);
}

TEST(Agreement, RunsThatWereMuchSlowerDoNotPullAtTheFactors) {
  // Four of the seven runs took longer for another reason. The median of all seven is 2.
  std::vector<FitSample> samples;
  for (const double measured : {1.0, 1.0, 1.0, 2.0, 4.0, 8.0, 3.0}) samples.push_back({{.compute = 1}, measured, 1});
  EXPECT_NEAR(fit_constants(samples).compute, 1, 0.001);
}

TEST(Agreement, WhatSamplesDoNotDecideStaysAtOne) {
  const std::vector<FitSample> samples = {{{.compute = 1}, 2, 1}};
  EXPECT_NEAR(fit_constants(samples).compute, 2, 0.001);
  EXPECT_EQ(fit_constants(samples).communication, 1);
}

}  // namespace
}  // namespace copus
