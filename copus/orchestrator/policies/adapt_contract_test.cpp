#include "copus/orchestrator/policies/adapt_contract.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "copus/orchestrator/testing/policy_test_support.h"

namespace copus {
namespace {

using namespace policy_test;
using testing::HasSubstr;

class AdaptContractTest : public testing::Test {
 protected:
  AdaptContractTest() { config_.adapt.objective = Objective::tokens; }

  // Makes steps of `seconds` seconds. Their loss falls as a power of the samples, with `more` added.
  void steps(AdaptContract& contract, int64_t count, const Configuration& configuration, double more = 0,
             double seconds = 1) {
    for (int64_t i = 0; i < count; ++i) {
      Observation step;
      step.consumed_samples = samples_ += configuration.global_batch;
      step.step_seconds = seconds;
      step.elapsed_seconds = elapsed_ += seconds;
      step.loss = 2 + 3 * std::pow(static_cast<double>(samples_) / 3200, -0.28) + more;
      contract.observe(step, configuration);
    }
  }

  RunConfig config_ = copus_config(16);
  const Configuration small_{pipeline, 16, 1}, large_{pipeline, 32, 1}, elsewhere_{data, 16, 1};
  int64_t samples_ = 0;
  double elapsed_ = 0;
};

TEST_F(AdaptContractTest, ALossThatIsTooHighInALargerBatchBreaksIt) {
  AdaptContract contract(config_);
  steps(contract, 400, small_);
  steps(contract, 31, large_, 0.1);
  EXPECT_FALSE(contract.breach()) << "too few steps";
  steps(contract, 9, large_, 0.1);
  const auto breach = contract.breach();
  ASSERT_TRUE(breach);
  EXPECT_EQ(breach->batch_before, 16);
  EXPECT_NEAR(breach->excess.nats, 0.1, 0.003);
  EXPECT_THAT(contract.describe(*breach), HasSubstr("from the batch of 16"));
  config_.adapt.loss_contract = 0.2;
  AdaptContract other(config_);
  samples_ = 0;
  steps(other, 400, small_);
  steps(other, 40, large_, 0.1);
  EXPECT_FALSE(other.breach()) << "it allows more";
}

TEST_F(AdaptContractTest, ARunThatOnlyAdvisesBreaksNothing) {
  config_.adapt.advise = true;
  AdaptContract contract(config_);
  steps(contract, 400, small_);
  steps(contract, 40, large_, 0.1);
  EXPECT_FALSE(contract.breach());
}

TEST_F(AdaptContractTest, AForbiddenBatchIsAllowedTwiceAsFar) {
  AdaptContract contract(config_);
  contract.forbid(32, 1000);
  EXPECT_FALSE(contract.why_forbidden(31, 1500));
  EXPECT_TRUE(contract.why_forbidden(32, 1999));
  EXPECT_TRUE(contract.why_forbidden(64, 1999));
  EXPECT_FALSE(contract.why_forbidden(64, 2000));
}

TEST_F(AdaptContractTest, RelayoutsCountWhoeverMadeThemUntilRanksOrSpeedsChange) {
  config_.adapt.most_relayouts = 2;
  AdaptContract contract(config_);
  steps(contract, 1, small_);
  EXPECT_FALSE(contract.why_too_many(2));
  steps(contract, 1, elsewhere_);
  steps(contract, 1, small_);  // there and back, without a decision
  EXPECT_THAT(contract.why_too_many(1).value(), HasSubstr("of 2 re-layouts (adapt.most_relayouts) 2 have been made"));
  steps(contract, 1, large_);
  EXPECT_TRUE(contract.why_too_many(1));
  steps(contract, 40, large_, 0, 1.2);
  EXPECT_TRUE(contract.why_too_many(1)) << "steps scatter so much";
  steps(contract, 40, large_, 0, 1.6);
  EXPECT_FALSE(contract.why_too_many(2));
  steps(contract, 1, elsewhere_);
  EXPECT_TRUE(contract.why_too_many(2));
  steps(contract, 1, {layout(2, 1, 1), 16, 1});
  EXPECT_FALSE(contract.why_too_many(2)) << "two ranks are left";
}

// At equal seconds a node that has become slow makes every batch look bad; at equal samples it does not matter.
TEST_F(AdaptContractTest, OtherSpeedsEndAWatchByTheClock) {
  for (const Objective objective : {Objective::time, Objective::tokens}) {
    config_.adapt.objective = objective;
    AdaptContract contract(config_);
    samples_ = 0;
    steps(contract, 400, small_);
    steps(contract, 33, large_, 0.1);
    EXPECT_TRUE(contract.breach());
    steps(contract, 16, large_, 0.1, 2);
    EXPECT_EQ(contract.breach().has_value(), objective == Objective::tokens);
  }
}

TEST_F(AdaptContractTest, ItsStateReadsBack) {
  config_.adapt.most_relayouts = 1;
  AdaptContract contract(config_);
  steps(contract, 1, elsewhere_);
  steps(contract, 400, small_);
  steps(contract, 40, large_, 0.1);
  contract.forbid(32, 1000);
  StateValues written;
  contract.visit_state(written);
  const auto read_back = [&] {
    AdaptContract again(config_);
    StateValues values(written.written());
    again.visit_state(values);
    values.require_end();
    return again;
  };
  const AdaptContract again = read_back();
  EXPECT_EQ(again.breach().value().excess.nats, contract.breach().value().excess.nats);
  EXPECT_EQ(again.breach().value().batch_before, 16);
  EXPECT_TRUE(again.why_too_many(1));
  EXPECT_TRUE(again.why_forbidden(32, 1000));
  config_.adapt.objective = Objective::time;
  EXPECT_FALSE(read_back().breach()) << "its losses were at samples, and seconds count now";
}

}  // namespace
}  // namespace copus
