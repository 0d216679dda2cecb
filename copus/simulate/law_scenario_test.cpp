#include "copus/simulate/law_scenario.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "copus/base/testing/test_support.h"
#include "copus/config/descriptions.h"
#include "copus/orchestrator/testing/synthetic_job.h"
#include "copus/simulate/simulated_run.h"

namespace copus {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr double length = 2048;

// A small model that stands for Llama 3.2 3B on 8 H100, with few candidates.
RunConfig modelled_run() {
  RunConfig config = adapting_run();
  config.cluster = {};
  config.cluster.clock = ClockKind::modelled;
  config.cluster.description = find_cluster("h100-sxm");
  config.cluster.stands_for = find_model("llama-3.2-3b");
  config.cluster.stands_for_sequence_length = static_cast<int64_t>(length);
  config.cluster.stands_for_precision = Precision::bf16;
  config.cluster.truth_layout_error = 0.1;
  config.parallel = {.data_parallel = 1, .tensor_parallel = 8};
  config.train.micro_batch = 1;
  config.adapt.global_batches = {16, 32, 64, 128, 256};
  config.adapt.micro_batches = {1, 2};
  return config;
}

LawQuestion short_question() { return {.tokens = 3e8, .losses = {4, 6}}; }

SimulatedRun run_of(RunConfig config, const LawScenario& scenario, PolicyKind policy) {
  config.adapt.policy = policy;
  return simulate(scenario.world, as_simulated(config, scenario));
}

std::string refusal_of(const RunConfig& config, const LawScenario& scenario) {
  try {
    as_simulated(config, scenario);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(LawScenario, AStaticRunIsAtEveryLossAfterTheSecondsAndSamplesThatItNeeds) {
  const RunConfig config = modelled_run();
  const LawScenario scenario = make_law_scenario(config, short_question());
  const SimulatedRun run = run_of(config, scenario, PolicyKind::fixed);
  const Configuration first = configuration_of(config);
  ASSERT_EQ(scenario.targets.size(), 3u);
  ASSERT_EQ(run.arrivals.size(), 3u);
  EXPECT_EQ(run.last, first);
  for (size_t i = 0; i < 3; ++i) {
    const double progress = scenario.targets[i].progress;
    const double seconds = static_seconds(scenario.world.truth, first, scenario.world.seconds.at(first), progress);
    EXPECT_NEAR(run.arrivals[i].seconds / seconds, 1, 1e-9);
    EXPECT_NEAR(run.arrivals[i].samples / scenario.world.truth.samples_to(progress, 16), 1, 1e-9);
  }
  EXPECT_DOUBLE_EQ(run.arrivals.back().seconds, run.seconds);
}

TEST(LawScenario, CalibrationsHaveErrors) {
  RunConfig config = modelled_run();
  config.adapt.policy = PolicyKind::copus;
  config.adapt.explore_budget = 0.9;
  config.adapt.hold_in = {};
  LawScenario scenario = make_law_scenario(config, short_question());
  const auto critical_batch_at_the_end = [&] {
    double critical = 0;
    const SimulatedRun run = simulate(
        scenario.world, as_simulated(config, scenario),
        [&](const SimulatedDecision& simulated) { critical = simulated.decision.critical_batch.value_or(critical); });
    EXPECT_GT(run.calibrations, 0);
    return critical;
  };
  const double critical = critical_batch_at_the_end();
  scenario.world.branch_error = 0;
  EXPECT_GT(std::abs(std::log(critical / critical_batch_at_the_end())), 0.01);
}

TEST(LawScenario, ItsTargetsAreTheLossesOfTheLawOnTheWayDown) {
  const LawScenario scenario = make_law_scenario(modelled_run(), short_question());
  const double last = scenario.loss.at(3e8);
  EXPECT_EQ(scenario.targets[0].loss, 6);
  EXPECT_EQ(scenario.targets[1].loss, 4);
  EXPECT_EQ(scenario.targets[2].loss, last);
  for (const LawTarget& target : scenario.targets) {
    EXPECT_NEAR(scenario.loss.at(target.progress * length), target.loss, 1e-9);
    EXPECT_LE(target.clairvoyant_seconds, target.best_static.seconds * (1 + 1e-12));
  }
  const double parameters = scenario.loss.parameters;
  EXPECT_NEAR(parameters, 3.2e9, 0.1e9);
  EXPECT_DOUBLE_EQ(make_law_scenario(modelled_run(), {}).tokens, 20 * parameters);
}

TEST(LawScenario, ItsTruthFollowsTheLawOfTheCriticalBatch) {
  for (const PublishedLaw law : all_values<PublishedLaw>()) {
    const LawScenario scenario = make_law_scenario(modelled_run(), {.law = law, .calibration = 5, .tokens = 1e10});
    const Truth& truth = scenario.world.truth;
    for (size_t i = 1; i < truth.pieces().size(); i += 37) {
      const double tokens = truth.pieces()[i].begin * length;
      const double critical = published_critical_batch(law, tokens, scenario.loss.at(tokens)) / length;
      EXPECT_NEAR(truth.pieces()[i].critical_batch / critical, 1, 0.02) << to_string(law) << " at " << tokens;
      EXPECT_NEAR(truth.pieces()[i].noise_scale * 5 / critical, 1, 0.02);
    }
    EXPECT_NEAR(truth.end_of(truth.pieces().size() - 2) * length / 1e10, 1, 0.03);
  }
}

TEST(LawScenario, NoPolicyIsFasterThanTheClairvoyantAtAnyLoss) {
  const RunConfig config = modelled_run();
  for (const double alpha : {0.0, 0.5}) {
    for (const std::optional<double> pause : {std::optional<double>(), std::optional(30.0)}) {
      LawQuestion question = short_question();
      question.truth_alpha = alpha;
      question.pause_seconds = pause;
      const LawScenario scenario = make_law_scenario(config, question);
      for (const PolicyKind policy : {PolicyKind::copus, PolicyKind::copus_paper, PolicyKind::cbs_optimistic}) {
        const SimulatedRun run = run_of(config, scenario, policy);
        for (size_t i = 0; i < scenario.targets.size(); ++i) {
          EXPECT_GE(run.arrivals[i].seconds, scenario.targets[i].clairvoyant_seconds * (1 - 1e-9)) << i;
        }
      }
    }
  }
}

TEST(LawScenario, PausesAreThoseOfPlansUnlessGiven) {
  const RunConfig config = modelled_run();
  const LawScenario planned = make_law_scenario(config, short_question());
  const SimulatedRun run = run_of(config, planned, PolicyKind::copus);
  ASSERT_GT(run.relayouts, 0);
  EXPECT_GT(run.pause_seconds, 0);
  EXPECT_LT(run.pause_seconds / static_cast<double>(run.relayouts), 1) << "NVLink moves this state in less";
  LawQuestion question = short_question();
  question.pause_seconds = 45;
  const SimulatedRun slow = run_of(config, make_law_scenario(config, question), PolicyKind::copus);
  ASSERT_GT(slow.relayouts, 0);
  EXPECT_DOUBLE_EQ(slow.pause_seconds, static_cast<double>(slow.relayouts) * 45);
}

TEST(LawScenario, WhatDoesNotFitIntoTheTrueDevicesIsVetoed) {
  RunConfig config = modelled_run();
  const size_t believed = make_law_scenario(config, short_question()).world.seconds.size();
  config.cluster.truth = config.cluster.description;
  config.cluster.truth->device.memory_bytes /= 4;
  const LawScenario scenario = make_law_scenario(config, short_question());
  EXPECT_LT(scenario.world.seconds.size(), believed);
  config.adapt.policy = PolicyKind::copus;
  int64_t aimed_at_missing = 0;
  const auto listen = [&](const SimulatedDecision& simulated) {
    const Decision& decision = simulated.decision;
    if (decision.moves && !scenario.world.seconds.contains(*decision.choice.target)) ++aimed_at_missing;
  };
  const SimulatedRun run = simulate(scenario.world, as_simulated(config, scenario), listen);
  EXPECT_GT(aimed_at_missing, 0);
  EXPECT_TRUE(scenario.world.seconds.contains(run.last));
  EXPECT_EQ(run.arrivals.size(), 3u);
}

TEST(LawScenario, RefusesAPolicyThatBeginsInWhatDoesNotFit) {
  RunConfig config = modelled_run();
  config.cluster.truth = config.cluster.description;
  config.cluster.truth->device.memory_bytes = config.cluster.truth->device.memory_bytes * 3 / 20;
  const LawScenario scenario = make_law_scenario(config, short_question());
  for (const PolicyKind policy : {PolicyKind::static_best, PolicyKind::cbs_pessimistic}) {
    config.adapt.policy = policy;
    EXPECT_THAT(refusal_of(config, scenario), HasSubstr("does not fit into the memory of the true devices"));
  }
}

TEST(LawScenario, RefusesWhatWouldDecideNothing) {
  RunConfig config = modelled_run();
  const LawScenario scenario = make_law_scenario(config, short_question());
  for (const PolicyKind policy : {PolicyKind::late_switch, PolicyKind::seesaw}) {
    config.adapt.policy = policy;
    EXPECT_THAT(refusal_of(config, scenario), HasSubstr("goes by the share of the run"));
  }
  config.adapt.policy = PolicyKind::copus;
  config.adapt.advise = true;
  EXPECT_THAT(refusal_of(config, scenario), HasSubstr("adapt.advise"));
}

TEST(LawScenario, ARunCountsInSamplesOfTheJobAndSparesTime) {
  RunConfig config = modelled_run();
  config.train.max_steps = 100;
  config.adapt.objective = Objective::automatic;
  const LawScenario scenario = make_law_scenario(config, short_question());
  const RunConfig simulated = as_simulated(config, scenario);
  EXPECT_EQ(simulated.train.sequence_length, 2048);
  EXPECT_FALSE(spares_tokens(simulated));
  const double needed = scenario.world.truth.samples_to(scenario.world.end.value, 16) * length;
  EXPECT_NEAR(static_cast<double>(limit_in_tokens(simulated.train)) / needed, 2, 1e-4);
  config.adapt.objective = Objective::tokens;
  EXPECT_TRUE(spares_tokens(as_simulated(config, scenario)));
}

TEST(LawScenario, SaysWhyARunCannotBeSimulated) {
  const auto refusal = [](const RunConfig& config, const LawQuestion& question) -> std::string {
    try {
      make_law_scenario(config, question);
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  };
  RunConfig config = modelled_run();
  EXPECT_THAT(refusal(config, {.tokens = 1e9, .losses = {2}}),
              AllOf(HasSubstr("a target loss of 2"), HasSubstr("3.16")));
  EXPECT_THAT(refusal(config, {.tokens = 1e9, .losses = {20}}), HasSubstr("a target loss of 20"));
  config.cluster.profile = "profile.json";
  EXPECT_THAT(refusal(config, {}), HasSubstr("cluster.profile"));
  config = modelled_run();
  config.cluster.stands_for_precision = config.execution.precision = Precision::automatic;
  EXPECT_THAT(refusal(config, {}), HasSubstr("stands_for_precision"));
  config = modelled_run();
  config.cluster.clock = ClockKind::wall;
  EXPECT_THAT(refusal(config, {}), HasSubstr("\"modelled\""));
  config = modelled_run();
  config.parallel = {.data_parallel = 8};
  config.cluster.truth = config.cluster.description;
  config.cluster.truth->device.memory_bytes /= 4;
  EXPECT_THAT(refusal(config, {}), HasSubstr("cannot begin in d=8,t=1,p=1,B=16,b=1: it needs"));
}

}  // namespace
}  // namespace copus
