#include "copus/orchestrator/policies/adapt_forecast.h"

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
        config_, candidates, {pipeline, 16, 1}, {0, tokens_},
        [this](const ParallelStrategy&) { return pause_seconds_; }, laws);
  }
  // A law whose critical batch is `samples` throughout the run.
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
  EXPECT_THAT(describe(already).front(), HasSubstr("nothing by its layout"));
}

// The larger batch is four times as large and takes 1.25 times the seconds. Each of its samples is worth (1 + 16 / 64)
// / (1 + 64 / 64) of one in the first batch.
TEST_F(AdaptForecastTest, ABatchSavesByItsThroughputAndTheWorthOfItsSamples) {
  const std::vector<Candidate> candidates = {candidate(pipeline, 16, 1), candidate(pipeline, 64, 1.25)};
  const double time = 1.25 / 4 / (1.25 / 2);
  EXPECT_NEAR(forecast(candidates, {constant(64)}).batch_saving, 1 - time, 1e-12);
  EXPECT_EQ(forecast(candidates, {constant(1)}).batch_saving, 0) << "the first batch is the best one";
  const AdaptForecast unsure = forecast(candidates, {constant(64), constant(1), constant(1)});
  EXPECT_EQ(unsure.batch_saving, 0);
  EXPECT_GT(unsure.batch_saving_high, 0.1);
  // Another layout halves the time, so the batch can save only half as much.
  std::vector<Candidate> in_other_layout = {candidate(pipeline, 16, 2), candidate(data, 16, 1),
                                            candidate(data, 64, 1.25)};
  EXPECT_NEAR(forecast(in_other_layout, {constant(64)}).batch_saving, (1 - time) / 2, 1e-12);
  config_.adapt.objective = Objective::tokens;
  EXPECT_EQ(forecast(candidates, {constant(64)}).batch_saving, 0) << "it would spend tokens";
}

TEST_F(AdaptForecastTest, TheCriticalBatchOfAResumedRunIsThatOfItsTokens) {
  const std::vector<Candidate> candidates = {candidate(pipeline, 16, 1), candidate(pipeline, 64, 1.25)};
  const EfficiencyLaw growing{.level = std::log(1e9), .by_tokens = 1};
  const auto saving_after = [&](double done) {
    return forecast_adapting(config_, candidates, {pipeline, 16, 1}, {done, 1e-3},
                             [](const ParallelStrategy&) { return 0.0; }, {growing})
        .batch_saving;
  };
  const double length = static_cast<double>(config_.train.sequence_length);
  const double critical = 64 * length;  // the law is B_c = n, so this is also the tokens done
  EXPECT_NEAR(saving_after(critical), 0.5, 1e-6);
  EXPECT_EQ(saving_after(length), 0);
}

TEST_F(AdaptForecastTest, PausesAndTriesThatFailAreItsCost) {
  config_.adapt.most_relayouts = 4;
  pause_seconds_ = 3;
  const std::vector<Candidate> candidates = {candidate(pipeline, 16, 2), candidate(data, 16, 1.8),
                                             candidate(layout(2, 2, 1), 16, 2)};
  const AdaptForecast forecast = this->forecast(candidates);
  EXPECT_EQ(forecast.relayouts, 4);
  EXPECT_DOUBLE_EQ(forecast.cost, (4 * 3 + 2 * 6 * 2) / 2000.0);
  EXPECT_EQ(describe(forecast).back(), "adapting (adapt.policy = \"copus\") is worth it");
  pause_seconds_ = 42;
  EXPECT_EQ(describe(this->forecast(candidates)).back(), "adapting (adapt.policy = \"copus\") may be worth it");
  pause_seconds_ = 60;
  EXPECT_EQ(describe(this->forecast(candidates)).back(), "adapting (adapt.policy = \"copus\") is not worth it");
}

TEST_F(AdaptForecastTest, LayoutsThatMayNotBeTriedSaveAndCostNothing) {
  const std::vector<Candidate> candidates = {candidate(pipeline, 16, 2), candidate(data, 16, 1)};
  pause_seconds_ = 10;
  for (const int64_t most : {0, 1}) {
    config_.adapt.most_relayouts = most;
    const AdaptForecast forecast = this->forecast(candidates);
    EXPECT_EQ(forecast.layout_saving, 0);
    EXPECT_EQ(forecast.cost, 0);
    EXPECT_FALSE(forecast.may_pay());
  }
  config_.adapt.most_relayouts = 1000;
  EXPECT_EQ(forecast(candidates).relayouts, 2) << "there is one other layout";
  EXPECT_EQ(forecast({candidate(pipeline, 16, 2)}).relayouts, 0);
}

}  // namespace
}  // namespace copus
