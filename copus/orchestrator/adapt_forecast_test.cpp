#include "copus/orchestrator/adapt_forecast.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "copus/orchestrator/testing/policy_test_support.h"

namespace copus {
namespace {

using namespace policy_test;
using testing::HasSubstr;

class AdaptForecastTest : public testing::Test {
 protected:
  AdaptForecastTest() { config_.adapt.objective = Objective::time; }

  AdaptForecast forecast(const std::vector<Candidate>& candidates,
                         const std::vector<EfficiencyLaw>& laws = {{}}) const {
    return forecast_adapting(
        config_, candidates, {pipeline, 16, 1}, tokens_, [this](const ParallelStrategy&) { return pause_seconds_; },
        laws);
  }
  // A law whose critical batch is so many samples throughout the run.
  EfficiencyLaw constant(double samples) const {
    return {.level = std::log(samples * static_cast<double>(config_.train.sequence_length))};
  }

  RunConfig config_ = copus_config(16);
  double tokens_ = 1000.0 * 16 * static_cast<double>(config_.train.sequence_length);  // 1000 steps
  double pause_seconds_ = 0;
};

TEST_F(AdaptForecastTest, ALayoutSavesWhatItsStepsAreShorter) {
  const AdaptForecast faster = forecast({candidate(pipeline, 16, 2, 0.03), candidate(data, 16, 1.5, 0.04)});
  EXPECT_DOUBLE_EQ(faster.layout_saving, 0.25);
  EXPECT_NEAR(faster.layout_saving_low, 1 - 0.75 * std::exp(1.28 * 0.05), 1e-12);
  EXPECT_NEAR(faster.layout_saving_high, 1 - 0.75 * std::exp(-1.28 * 0.05), 1e-12);
  EXPECT_EQ(faster.fastest.configuration.strategy, data);
  EXPECT_EQ(faster.batch_saving_high, 0);
  const AdaptForecast already = forecast({candidate(pipeline, 16, 1, 0.03), candidate(data, 16, 1.5, 0.04)});
  EXPECT_EQ(already.layout_saving, 0);
  EXPECT_EQ(already.layout_saving_low, 0);
  EXPECT_THAT(describe(already, config_).front(), HasSubstr("nothing by its layout"));
}

// A batch four times as large at 1.25 times the seconds, where each sample is worth (1 + 16 / 64) / (1 + 64 / 64).
TEST_F(AdaptForecastTest, ABatchSavesByItsThroughputAndTheWorthOfItsSamples) {
  const std::vector<Candidate> candidates = {candidate(pipeline, 16, 1), candidate(pipeline, 64, 1.25)};
  const double time = 1.25 / 4 / (1.25 / 2);
  EXPECT_NEAR(forecast(candidates, {constant(64)}).batch_saving, 1 - time, 1e-12);
  EXPECT_EQ(forecast(candidates, {constant(1)}).batch_saving, 0) << "the first batch is the best one";
  const AdaptForecast unsure = forecast(candidates, {constant(64), constant(1), constant(1)});
  EXPECT_EQ(unsure.batch_saving, 0);
  EXPECT_GT(unsure.batch_saving_high, 0.1);
  // In half of the time, by another layout, half as much is left to save.
  std::vector<Candidate> in_other_layout = {candidate(pipeline, 16, 2), candidate(data, 16, 1),
                                            candidate(data, 64, 1.25)};
  EXPECT_NEAR(forecast(in_other_layout, {constant(64)}).batch_saving, (1 - time) / 2, 1e-12);
  config_.adapt.objective = Objective::tokens;
  EXPECT_EQ(forecast(candidates, {constant(64)}).batch_saving, 0) << "it would spend tokens";
}

TEST_F(AdaptForecastTest, PausesAndTriesThatFailAreItsCost) {
  config_.adapt.most_relayouts = 4;
  pause_seconds_ = 3;
  const AdaptForecast forecast = this->forecast({candidate(pipeline, 16, 2), candidate(data, 16, 1.96)});
  EXPECT_DOUBLE_EQ(forecast.most_cost, (4 * 3 + 2 * 6 * 2) / 2000.0);
  EXPECT_TRUE(forecast.pays());
  EXPECT_THAT(describe(forecast, config_).back(), HasSubstr("is worth turning on"));
  pause_seconds_ = 10;
  const AdaptForecast dear = this->forecast({candidate(pipeline, 16, 2), candidate(data, 16, 1.96)});
  EXPECT_FALSE(dear.pays());
  EXPECT_THAT(describe(dear, config_).back(), HasSubstr("is not worth turning on"));
}

}  // namespace
}  // namespace copus
