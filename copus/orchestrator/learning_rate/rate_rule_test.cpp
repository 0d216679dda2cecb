// Tests of the learning rate's factor in a run: its initial value, and how it follows what is known of the noise scale.
#include "copus/orchestrator/learning_rate/rate_rule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "copus/orchestrator/controller/controller.h"
#include "copus/orchestrator/testing/synthetic_job.h"

namespace copus {
namespace {

constexpr double unbounded = std::numeric_limits<double>::infinity();

RunConfig run_in(int64_t batch, int64_t reference) {
  RunConfig config = small_run();
  config.train.global_batch = batch;
  config.optimizer.reference_batch = reference;
  config.noise_scale.calibration = 2;
  config.noise_scale.critical_updates = 0;
  return config;
}

TEST(RateRule, IsTheOptimizersByDefaultTheSquareRootOfTheFirstBatch) {
  RunConfig config = run_in(8, 0);
  EXPECT_EQ(rate_rule_of(config), (RateRule{.exponent = 0.5, .reference_batch = 8}));
  config.optimizer.batch_scaling = BatchScaling::linear;
  config.optimizer.reference_batch = 32;
  EXPECT_EQ(rate_rule_of(config), (RateRule{.exponent = 1, .reference_batch = 32}));
  config.optimizer.batch_scaling = BatchScaling::none;
  EXPECT_EQ(rate_rule_of(config).exponent, 0);
}

TEST(RateRule, ARunInAnotherBatchThanTheReferenceBeginsWithTheFactor) {
  EXPECT_EQ(initial_rate_factor(run_in(1024, 0), 1024), 1);
  EXPECT_EQ(initial_rate_factor(run_in(1024, 64), 1024), 4);
  EXPECT_EQ(initial_rate_factor(run_in(16, 64), 16), 0.5);
  RunConfig config = run_in(1024, 64);
  config.optimizer.batch_scaling = BatchScaling::none;
  EXPECT_EQ(initial_rate_factor(config, 1024), 1);
}

TEST(RateRule, WhileNothingIsKnownNoLargerBatchGetsALargerRate) {
  const RunConfig config = run_in(8, 0);
  const double cap = follow_critical_batch(config, 8, initial_rate_cap(config, 8), NoiseBelief(), 1000);
  EXPECT_EQ(rate_factor(rate_rule_of(config), 64, cap), 1);
  EXPECT_EQ(rate_factor(rate_rule_of(config), 2, cap), 0.5);
}

TEST(RateRule, ALowerBoundRaisesTheCapAndNeverLowersIt) {
  const RunConfig config = run_in(8, 0);  // B_c is twice the noise scale
  EXPECT_EQ(follow_critical_batch(config, 8, 8, {25, 25, unbounded}, 1000), 50);
  EXPECT_EQ(follow_critical_batch(config, 8, 80, {25, 25, unbounded}, 1000), 80);
  EXPECT_EQ(follow_critical_batch(config, 8, 80, {25, 20, 30}, 1000), 50) << "an estimate does both";
}

TEST(RateRule, TheUpdatesSoFarBoundTheCapOfALowerBoundToo) {
  RunConfig config = run_in(8, 0);
  config.noise_scale.critical_updates = 25;
  EXPECT_EQ(follow_critical_batch(config, 8, 80, {5, 5, unbounded}, 1000), 40) << "1000 / 25";
  EXPECT_EQ(follow_critical_batch(config, 8, 20, {5, 5, unbounded}, 1000), 20);
}

// A run that stays at batch 64, with a noise scale that each test makes up.
class RateInARun : public testing::Test {
 protected:
  RateInARun() {
    config_.adapt.policy = PolicyKind::fixed;
    config_.adapt.interval_samples = 64;
    config_.optimizer.reference_batch = 8;
    config_.train.global_batch = 64;
  }

  std::vector<Decision> decide(Controller& controller, SyntheticJob& job, int64_t steps, std::optional<double> value,
                               std::optional<double> low) {
    std::vector<Decision> decisions;
    for (int64_t i = 0; i < steps; ++i) {
      Observation now = job.next_step();
      now.noise_scale = value;
      now.noise_scale_low = low;
      now.noise_scale_high = value ? std::optional(1.2 * *value) : std::nullopt;
      const Reaction reaction = controller.observe(now);
      if (!reaction.decision) continue;
      EXPECT_EQ(reaction.rate_factor, reaction.decision->rate_factor);
      EXPECT_EQ(controller.rate_factor(), *reaction.rate_factor);
      decisions.push_back(*reaction.decision);
    }
    return decisions;
  }

  RunConfig config_ = adapting_run();
};

TEST_F(RateInARun, FollowsTheCriticalBatchOfNowAtEveryDecision) {
  SyntheticJob job(config_);
  Controller controller(config_, configuration_of(config_), Knowledge());
  double rate = std::sqrt(8.0);
  EXPECT_EQ(controller.rate_factor(), rate);
  for (const double critical : {20.0, 400.0, 12.0, 2.0, 40.0}) {
    std::vector<double> rates;
    for (const Decision& decision : decide(controller, job, 60, critical / 2, 0.8 * critical / 2)) {
      rates.push_back(*decision.rate_factor);
      EXPECT_LE(std::abs(std::log(rates.back() / rate)), std::log1p(largest_rate_change) + 1e-12);
      EXPECT_EQ(rates.back(), rate_factor(rate_rule_of(config_), 64, *decision.rate_cap));
      rate = rates.back();
    }
    ASSERT_FALSE(rates.empty());
    EXPECT_DOUBLE_EQ(rate, std::sqrt(std::clamp(critical, 8.0, 64.0) / 8)) << "B_c " << critical;
  }
}

TEST_F(RateInARun, StaysWhileOnlyALowerBoundIsKnown) {
  SyntheticJob job(config_);
  Controller controller(config_, configuration_of(config_), Knowledge(), "", 1.5);
  EXPECT_EQ(controller.rate_factor(), 1.5) << "the factor of a run that goes on";
  decide(controller, job, 20, std::nullopt, std::nullopt);
  EXPECT_DOUBLE_EQ(controller.rate_factor(), 1.5);
  decide(controller, job, 20, std::nullopt, 5);
  EXPECT_DOUBLE_EQ(controller.rate_factor(), 1.5) << "B_c of at least 10 says nothing against 18";
  decide(controller, job, 20, std::nullopt, 16);
  EXPECT_DOUBLE_EQ(controller.rate_factor(), 2) << "B_c is at least 32";
}

// This holds from the first measured step on, for which decisions wait.
TEST_F(RateInARun, IsTheSameInARunThatIsResumed) {
  const auto rates_of_run = [&](int64_t resumed_after) {
    SyntheticJob job(config_);
    Controller controller(config_, configuration_of(config_), Knowledge());
    std::vector<std::pair<int64_t, double>> rates;
    const auto go_on = [&](int64_t steps) {
      for (const Decision& decision : decide(controller, job, steps, 10, 8)) {
        rates.emplace_back(decision.step, *decision.rate_factor);
      }
    };
    go_on(resumed_after);
    controller.mark_resumed();
    go_on(40 - resumed_after);
    return rates;
  };
  for (const int64_t after : {3, 5, 20, 39}) EXPECT_EQ(rates_of_run(after), rates_of_run(40)) << after;
}

TEST_F(RateInARun, WhoOnlyAdvisesChangesNothing) {
  config_.adapt.advise = true;
  SyntheticJob job(config_);
  Controller controller(config_, configuration_of(config_), Knowledge());
  for (int i = 0; i < 60; ++i) EXPECT_FALSE(controller.observe(job.next_step()).rate_factor);
}

TEST(RateRule, IsCappedUnlessThePolicySaysOtherwise) {
  RunConfig config = small_run();
  config.adapt.policy = PolicyKind::copus;
  EXPECT_TRUE(rate_rule_of(config).is_capped);
  config.adapt.policy = PolicyKind::copus_paper;
  EXPECT_FALSE(rate_rule_of(config).is_capped);
}

}  // namespace
}  // namespace copus
