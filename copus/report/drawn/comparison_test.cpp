#include "copus/report/drawn/comparison.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

namespace copus {
namespace {

using testing::HasSubstr;
using testing::Not;

// The loss of a run falls from 4 by 1 every `pace` seconds. It reaches 3 after `pace` seconds and 100 tokens, and 2
// after twice as many.
RunOutcome falling(const std::string& arm, int64_t seed, double pace, double last = 2) {
  RunOutcome outcome(arm, seed);
  outcome.evaluations = {{0, 0, 4}, {pace * (4 - last), 100 * (4 - last), last}};
  outcome.final_loss = last;
  return outcome;
}

RunOutcome failed(const std::string& arm, int64_t seed) { return {arm, seed, /*has_failed=*/true}; }

Experiment experiment_of(std::vector<ExperimentArm> arms) {
  Experiment experiment;
  experiment.base = "run.toml";
  experiment.seeds = {1, 2};
  experiment.targets = {3, 2};
  experiment.final_loss = true;
  experiment.arms = std::move(arms);
  experiment.reference = experiment.contenders().front();
  return experiment;
}

const Experiment two_arms = experiment_of({{"slow", "", {}}, {"fast", "", {"adapt.policy=copus"}}});

TEST(Comparison, TimesAreComparedSeedBySeedInTheirLogarithms) {
  const Comparison comparison = compare(
      two_arms, {falling("slow", 1, 10), falling("slow", 2, 1000), falling("fast", 1, 5), falling("fast", 2, 250)});
  ASSERT_EQ(comparison.results.size(), 2);
  const ArmMeasure& slow = comparison.results[0].measurements.at(0);
  EXPECT_EQ(slow.refusal, "");
  EXPECT_DOUBLE_EQ(slow.mean_seconds.value(), 100);
  EXPECT_DOUBLE_EQ(slow.mean_tokens.value(), 100);
  EXPECT_FALSE(slow.against_reference);
  const PairedDifference difference = comparison.results[1].measurements.at(0).against_reference.value();
  EXPECT_EQ(difference.pairs, 2);
  EXPECT_DOUBLE_EQ(difference.mean, std::log(0.5 * 0.25) / 2);
  // The standard error of two pairs is half of their distance; t(0.975) for one degree of freedom is tan(0.475 pi).
  const double half_width = std::tan(0.475 * std::numbers::pi) * std::numbers::ln2 / 2;
  EXPECT_NEAR(difference.low.value(), difference.mean - half_width, 1e-5);
  EXPECT_NEAR(difference.high.value(), difference.mean + half_width, 1e-5);
}

TEST(Comparison, ATargetThatOneSeedNeverReachedIsNotReportedAndTheSeedNamed) {
  const std::vector<RunOutcome> outcomes = {falling("slow", 1, 10), falling("slow", 2, 10), falling("fast", 1, 5),
                                            falling("fast", 2, 5, 2.5)};
  const Comparison comparison = compare(two_arms, outcomes);
  const std::vector<ArmMeasure>& fast = comparison.results[1].measurements;
  EXPECT_EQ(fast.at(0).refusal, "");
  EXPECT_EQ(fast.at(1).refusal, "seed 2 never reached it");
  EXPECT_EQ(fast.at(1).seconds.at(0), 10);  // the run that reached it is shown, but no mean
  EXPECT_FALSE(fast.at(1).mean_seconds || fast.at(1).against_reference);
  const std::string text = to_text(two_arms, comparison);
  EXPECT_THAT(text, HasSubstr("fast  not reported: seed 2 never reached it"));
  EXPECT_THAT(to_json(two_arms, comparison), HasSubstr("\"refusal\": \"seed 2 never reached it\""));
}

TEST(Comparison, EachReasonNamesItsSeeds) {
  Experiment experiment = two_arms;
  experiment.seeds = {1, 2, 3, 4};
  experiment.targets = {3};
  std::vector<RunOutcome> outcomes;
  for (const int64_t seed : experiment.seeds) outcomes.push_back(falling("slow", seed, 1));
  RunOutcome early = falling("fast", 3, 1);
  early.evaluations.erase(early.evaluations.begin());
  outcomes.insert(outcomes.end(), {falling("fast", 1, 1, 3.5), failed("fast", 2), early, falling("fast", 4, 1, 3.5)});
  EXPECT_EQ(
      compare(experiment, outcomes).results[1].measurements[0].refusal,
      "seed 2 failed; seeds 1 and 4 never reached it; seed 3 had reached it before the first evaluation (evaluate "
      "more often)");
}

TEST(Comparison, WithoutItsReferenceAnArmIsReportedAlone) {
  const Comparison comparison = compare(two_arms, {falling("slow", 1, 10, 2.5), falling("slow", 2, 10, 2.5),
                                                   falling("fast", 1, 5), falling("fast", 2, 5)});
  const ArmMeasure& fast = comparison.results[1].measurements.at(1);
  EXPECT_DOUBLE_EQ(fast.mean_seconds.value(), 10);
  EXPECT_FALSE(fast.against_reference);
  EXPECT_THAT(to_text(two_arms, comparison), HasSubstr("the reference is not reported"));
}

TEST(Comparison, LossesAtTheEndAreComparedAsTheyAre) {
  const Comparison comparison = compare(two_arms, {falling("slow", 1, 1, 2.5), falling("slow", 2, 1, 2.25),
                                                   falling("fast", 1, 1, 2), falling("fast", 2, 1, 2)});
  const ArmMeasure& fast = comparison.results[1].measurements.at(2);
  EXPECT_FALSE(fast.target);
  EXPECT_EQ(fast.mean_loss, 2);
  EXPECT_DOUBLE_EQ(fast.against_reference.value().mean, -0.375);
}

Experiment screened_experiment() {
  Experiment experiment = experiment_of({{"a", "fixed", {}}, {"b", "fixed", {}}, {"ours", "", {}}});
  experiment.screening_seeds = {11, 12};
  return experiment;
}

TEST(Comparison, TheFastestOfAGroupIsChosenOnTheScreeningSeedsAlone) {
  // On seeds 1 and 2 the arm "a" would win, but it was not chosen, so it need not have run with them.
  const std::vector<RunOutcome> outcomes = {falling("a", 11, 10), falling("a", 12, 20),   falling("b", 11, 9),
                                            falling("b", 12, 10), falling("a", 1, 1),     falling("b", 1, 30),
                                            falling("b", 2, 30),  falling("ours", 1, 15), falling("ours", 2, 15)};
  const Experiment experiment = screened_experiment();
  const Comparison comparison = compare(experiment, outcomes);
  ASSERT_EQ(comparison.groups.size(), 1);
  EXPECT_EQ(comparison.groups[0].chosen, "b");
  EXPECT_EQ(comparison.groups[0].arms.size(), 2);  // the arm that lost is listed too
  EXPECT_DOUBLE_EQ(comparison.results[0].measurements[0].mean_seconds.value(), 30);
  EXPECT_DOUBLE_EQ(comparison.results[1].measurements[0].against_reference.value().mean, std::log(0.5));
  const std::string text = to_text(experiment, comparison);
  EXPECT_THAT(text, HasSubstr("Group fixed: b, the fastest to a held-out loss of 2 on the screening seeds"));
  EXPECT_THAT(text, HasSubstr("fixed = b"));
  EXPECT_THAT(text, HasSubstr("  a  14.1 s"));
}

TEST(Comparison, TheLowestTargetThatAnArmReachedDecides) {
  const Experiment experiment = screened_experiment();
  // No arm reaches 2 with both seeds; arm "a" reaches 3 faster.
  EXPECT_EQ(
      choose_arm(experiment, "fixed",
                 {falling("a", 11, 1), falling("a", 12, 1, 2.5), falling("b", 11, 2, 2.1), falling("b", 12, 2, 2.1)})
          .chosen,
      "a");
  // No arm reaches any target: the loss at the end decides.
  EXPECT_EQ(choose_arm(experiment, "fixed",
                       {falling("a", 11, 1, 3.3), falling("a", 12, 1, 3.5), falling("b", 11, 2, 3.2),
                        falling("b", 12, 2, 3.5)})
                .chosen,
            "b");
}

TEST(Comparison, AnArmThatWasThereBeforeTheFirstEvaluationLosesToNobodyByThatTarget) {
  const Experiment experiment = screened_experiment();
  std::vector<RunOutcome> early = {falling("b", 11, 0.5), falling("b", 12, 0.5)};  // as fast, and evaluated once
  for (RunOutcome& outcome : early) outcome.evaluations.erase(outcome.evaluations.begin());
  for (RunOutcome& outcome : early) outcome.evaluations.front().loss = outcome.final_loss.emplace(1.5);
  const GroupChoice choice =
      choose_arm(experiment, "fixed", {falling("a", 11, 1), falling("a", 12, 1), early[0], early[1]});
  EXPECT_EQ(choice.chosen, "b");
  EXPECT_THAT(choice.reason, HasSubstr("at the end"));
}

TEST(Comparison, AGroupWithoutAnArmThatEndedIsNotReported) {
  const Experiment experiment = screened_experiment();
  const Comparison comparison = compare(experiment, {failed("a", 11), falling("a", 12, 1), falling("b", 11, 1),
                                                     failed("b", 12), falling("ours", 1, 1), falling("ours", 2, 1)});
  EXPECT_EQ(comparison.groups[0].chosen, "");
  EXPECT_EQ(comparison.results[0].measurements[0].refusal, "no arm of the group could be chosen");
  EXPECT_THAT(to_json(experiment, comparison), HasSubstr("\"chosen\": null"));
  EXPECT_THAT(to_text(experiment, comparison), Not(HasSubstr("nan")));
}

TEST(Comparison, FieldNames) {
  const Comparison comparison =
      compare(two_arms, {falling("slow", 1, 10), falling("slow", 2, 10), falling("fast", 1, 5), falling("fast", 2, 5)});
  const std::string json = to_json(two_arms, comparison);
  for (const char* const name : {"format",
                                 "version",
                                 "base",
                                 "set",
                                 "seeds",
                                 "screening_seeds",
                                 "draw_per_seed",
                                 "targets",
                                 "reference",
                                 "groups",
                                 "results",
                                 "name",
                                 "arm",
                                 "final_loss",
                                 "held_out_loss",
                                 "refusal",
                                 "seconds",
                                 "tokens",
                                 "mean_held_out_loss",
                                 "log_seconds_difference",
                                 "difference",
                                 "time_ratio",
                                 "time_ratio_low",
                                 "time_ratio_high",
                                 "runs",
                                 "seed",
                                 "pairs",
                                 "mean",
                                 "low",
                                 "high",
                                 "standard_deviation",
                                 "detectable"}) {
    EXPECT_THAT(json, HasSubstr(std::string("\"") + name + "\": ")) << name;
  }
}

}  // namespace
}  // namespace copus
