// Tests of a controller without a policy (adapt.policy "none"), which moves a run only on a user's command.
#include <gmock/gmock.h>

#include <cmath>

#include "copus/base/testing/test_support.h"
#include "copus/orchestrator/controller/controller.h"
#include "copus/orchestrator/learning_rate/rate_rule.h"
#include "copus/orchestrator/testing/synthetic_job.h"

namespace copus {
namespace {

using testing::HasSubstr;

class ControllerByCommand : public testing::Test {
 protected:
  ControllerByCommand() {
    described_.adapt.policy = PolicyKind::none;
    unknown_ = described_;
    unknown_.cluster = {};
  }

  static Controller controller_of(const RunConfig& config) { return {config, configuration_of(config), Knowledge()}; }

  static Command to(const Configuration& target) { return {.kind = Command::Kind::force, .target = target}; }

  Configuration in_batch(int64_t batch) const {
    Configuration configuration = configuration_of(described_);
    configuration.global_batch = batch;
    return configuration;
  }

  Configuration data_parallel_alone() const {
    Configuration configuration = configuration_of(described_);
    configuration.strategy = {.data_parallel = 4};
    return configuration;
  }

  RunConfig described_ = adapting_run();
  RunConfig unknown_;  // its cluster's speed is not described
};

TEST_F(ControllerByCommand, NeedsNoDescriptionOfTheClusterAndDecidesNothing) {
  SyntheticJob job(described_);
  Controller steered = controller_of(unknown_);
  EXPECT_FALSE(steered.has_policy());
  EXPECT_FALSE(steered.step_times());
  Course course;
  run_steps(job, steered, 100, course);
  EXPECT_TRUE(course.decisions.empty());
  EXPECT_EQ(steered.current(), configuration_of(described_));
  EXPECT_EQ(steered.knowledge(), Knowledge());
}

TEST_F(ControllerByCommand, MovesWhereItIsForcedAndStaysThere) {
  SyntheticJob job(described_);
  Controller steered = controller_of(unknown_);
  Course course;
  run_steps(job, steered, 20, course);
  const SwitchIntent batch = steered.command(to(in_batch(32))).value();
  EXPECT_EQ(batch.commit_after_step, 21);
  job.expect(batch);
  run_steps(job, steered, 10, course);
  EXPECT_EQ(steered.current(), in_batch(32));
  EXPECT_FALSE(steered.command(to(in_batch(32)))) << "already there";

  const SwitchIntent layout = steered.command(to(data_parallel_alone())).value();
  EXPECT_EQ(layout.commit_after_step, 30 + 1 + Controller::lead_steps);
  job.expect(layout);
  run_steps(job, steered, 50, course);
  EXPECT_EQ(steered.current(), data_parallel_alone());
  ASSERT_EQ(course.switches.size(), 2);
  EXPECT_TRUE(course.decisions.empty());
  EXPECT_TRUE(course.realised.empty()) << "nothing was predicted";
}

TEST_F(ControllerByCommand, AForcedBatchHasTheRateThatTheCriticalBatchOfNowAllowsAndALayoutLeavesIt) {
  SyntheticJob job(described_);
  Controller steered = controller_of(unknown_);
  Course course;
  Observation latest;
  run_steps(job, steered, 20, course, [&](Observation& observation) { latest = observation; });
  const int64_t batch = described_.train.global_batch;
  const double cap =
      follow_critical_batch(described_, batch, initial_rate_cap(described_, batch), believed_noise(latest), 20 * 16);
  const double expected = rate_factor(rate_rule_of(described_), 128, cap);
  EXPECT_GT(expected, 1.1);
  EXPECT_LT(expected, std::sqrt(128.0 / 16)) << "the critical batch caps it";
  const SwitchIntent intent = steered.command(to(in_batch(128))).value();
  EXPECT_EQ(intent.rate_factor, expected);
  job.expect(intent);
  run_steps(job, steered, 30, course);
  EXPECT_EQ(steered.rate_factor(), expected);
  Configuration other_layout = data_parallel_alone();
  other_layout.global_batch = 128;
  EXPECT_EQ(steered.command(to(other_layout)).value().rate_factor, expected);
}

TEST_F(ControllerByCommand, ASecondForcedBatchHasTheRateOfItsOwnMoment) {
  SyntheticJob job(described_);
  Controller steered = controller_of(unknown_);
  Course course;
  run_steps(job, steered, 20, course);
  const SwitchIntent first = steered.command(to(in_batch(128))).value();
  job.expect(first);
  Observation latest;
  run_steps(job, steered, 300, course, [&](Observation& observation) { latest = observation; });
  const auto samples = static_cast<double>(latest.consumed_samples);
  const RateRule rule = rate_rule_of(described_);
  const double first_cap = 16 * first.rate_factor * first.rate_factor;  // square root, and above the cap
  const double cap = rate_cap_by_noise(described_, first_cap, believed_noise(latest), samples);
  EXPECT_GT(cap, 1.2 * first_cap) << "the critical batch has grown, by more than the rate may follow at one batch";
  EXPECT_EQ(steered.command(to(in_batch(256))).value().rate_factor, rate_factor(rule, 256, cap));
}

TEST_F(ControllerByCommand, TellsWhatASwitchBroughtWhereStepTimesArePredicted) {
  SyntheticJob job(described_);
  Controller steered = controller_of(described_);
  Course course;
  run_steps(job, steered, 50, course);
  job.expect(steered.command(to(in_batch(32))).value());
  run_steps(job, steered, 200, course);
  ASSERT_EQ(course.realised.size(), 1);
  EXPECT_TRUE(std::isfinite(course.realised[0].predicted_gain));
  EXPECT_TRUE(steered.knowledge().knows_layout(in_batch(32)));
}

TEST_F(ControllerByCommand, RefusesWhatCannotBeAndSaysWhatCan) {
  Controller steered = controller_of(unknown_);
  const auto message = [&](const Configuration& target) { return user_error([&] { steered.command(to(target)); }); };
  EXPECT_THAT(message(in_batch(17)), HasSubstr("17"));
  Configuration eight_ranks = in_batch(16);
  eight_ranks.strategy.data_parallel = 4;
  EXPECT_THAT(message(eight_ranks), testing::AllOf(HasSubstr("needs 8 ranks, and the job trains on 4"),
                                                   HasSubstr("d x t x p is 4"), HasSubstr("--resume")));
  EXPECT_FALSE(steered.under_way());
}

TEST_F(ControllerByCommand, WhatHadNoMemoryIsNotForcedAgain) {
  SyntheticJob job(described_);
  Controller steered = controller_of(unknown_);
  Course course;
  run_steps(job, steered, 5, course);
  const SwitchIntent intent = steered.command(to(in_batch(64))).value();
  steered.report({.after_step = intent.commit_after_step,
                  .consumed_samples = int64_t{6} * 16,
                  .from = steered.current(),
                  .to = intent.configuration,
                  .outcome = SwitchReport::Outcome::vetoed,
                  .reason = "rank 1 has no memory",
                  .is_lack_of_memory = true});
  EXPECT_EQ(steered.current(), configuration_of(described_));
  EXPECT_THAT(user_error([&] { steered.command(to(in_batch(64))); }), HasSubstr("rank 1 has no memory"));
}

TEST_F(ControllerByCommand, GoesOnWithOtherRanks) {
  SyntheticJob job(described_);
  Controller steered = controller_of(unknown_);
  Course course;
  run_steps(job, steered, 5, course);
  RanksChanged change{
      .after_step = 5, .ranks = 2, .from = job.current(), .to = job.current(), .reason = "two are lost"};
  change.to.strategy = {.data_parallel = 2};
  change.to.micro_batch = 1;
  job.change_ranks(change);
  steered.ranks_changed(change);
  run_steps(job, steered, 5, course);
  Configuration target = change.to;
  target.strategy = {.tensor_parallel = 2};
  job.expect(steered.command(to(target)).value());
  run_steps(job, steered, 10, course);
  EXPECT_EQ(steered.current(), target);
}

}  // namespace
}  // namespace copus
