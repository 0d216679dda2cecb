#include "copus/simulate/simulated_run.h"

#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <set>
#include <vector>

#include "copus/base/testing/test_support.h"
#include "copus/simulate/regret.h"
#include "copus/simulate/testing/small_job.h"

namespace copus {
namespace {

Scenario scenario_of(int64_t number) { return make_scenario(number, {small_job()}); }

TEST(SimulatedRun, ThatNeverMovesTakesTheSecondsOfItsConfiguration) {
  std::set<ScenarioEnd::Kind> ends;
  for (int64_t number = 0; number < 10; ++number) {
    const Scenario scenario = scenario_of(number);
    const SimulatedRun run = simulate(scenario, under_policy(scenario, PolicyKind::fixed));
    const Configuration first = configuration_of(scenario.config);
    ends.insert(scenario.end.kind);
    EXPECT_EQ(run.last, first);
    EXPECT_EQ(run.relayouts + run.batch_changes, 0);
    if (scenario.end.kind == ScenarioEnd::Kind::progress) {
      const double seconds = static_seconds(scenario.truth, first, scenario.seconds.at(first), scenario.end.value);
      EXPECT_NEAR(run.seconds / seconds, 1, 1e-9) << describe(scenario);
    } else {
      EXPECT_NEAR(run.seconds / scenario.end.value, 1, 1e-9) << describe(scenario);
      EXPECT_NEAR(static_seconds(scenario.truth, first, scenario.seconds.at(first), run.progress) / run.seconds, 1,
                  1e-9);
    }
  }
  EXPECT_EQ(ends.size(), 2);
}

TEST(SimulatedRun, IsTheSameAgain) {
  const Scenario scenario = scenario_of(4);
  const auto hashes_of = [&] {
    std::vector<uint64_t> hashes;
    simulate(scenario, under_policy(scenario, PolicyKind::copus),
             [&](const SimulatedDecision& simulated) { hashes.push_back(simulated.decision.inputs_hash); });
    return hashes;
  };
  const std::vector<uint64_t> hashes = hashes_of();
  EXPECT_GT(hashes.size(), 5);
  EXPECT_EQ(hashes, hashes_of());
}

// Branches show the worth by which the run advances, also where it is no hyperbola.
TEST(SimulatedRun, BranchesShowTheWorthOfTheirWorld) {
  const auto critical_batch_at_the_end = [](WorthShape shape) {
    Scenario scenario = make_scenario(4, {small_job()}, {.whole_steps = 20'000});
    scenario.truth = Truth(shape, {{.noise_scale = 10, .critical_batch = 80}});
    scenario.branch_error = scenario.noise_drift = scenario.rate_feedback = 0;
    scenario.end = {ScenarioEnd::Kind::progress, 40'000};
    RunConfig config = under_policy(scenario, PolicyKind::copus);
    config.adapt.explore_budget = 0.9;
    config.adapt.hold_in = {};
    double critical = 0;
    const SimulatedRun run = simulate(scenario, config, [&](const SimulatedDecision& simulated) {
      critical = simulated.decision.critical_batch.value_or(critical);
    });
    EXPECT_EQ(run.calibrations, 2);
    return critical;
  };
  const double hyperbola = critical_batch_at_the_end(WorthShape::hyperbola);
  EXPECT_NEAR(hyperbola, 80, 20) << "8 times the noise scale, of which the policy expects 2";
  EXPECT_GT(critical_batch_at_the_end(WorthShape::root), 1.8 * hyperbola) << "fits half of the hyperbola's ln SE";
}

TEST(SimulatedRun, TheControllerSeesTheScheduleOfTheLearningRate) {
  const Scenario scenario = scenario_of(4);
  RunConfig config = under_policy(scenario, PolicyKind::fixed);
  config.optimizer.warmup_tokens = 0.1;
  config.optimizer.schedule = LearningRateSchedule::wsd;
  std::set<SchedulePhase> phases;
  simulate(scenario, config, [&](const SimulatedDecision& simulated) {
    const Decision& decision = simulated.decision;
    ASSERT_TRUE(decision.phase && decision.learning_rate && decision.clipped_share);
    const double highest = config.optimizer.lr * *decision.rate_factor;
    EXPECT_EQ(*decision.learning_rate < highest, decision.phase != SchedulePhase::main) << decision.step;
    phases.insert(*decision.phase);
  });
  EXPECT_GE(phases.size(), 2u);
}

TEST(SimulatedRun, TheControllerSeesWhatIsClipped) {
  const Scenario scenario = scenario_of(4);
  RunConfig config = under_policy(scenario, PolicyKind::fixed);
  for (const auto& [clip_norm, share] : {std::pair{0.0, 0.0}, std::pair{1e-9, 1.0}, std::pair{1e9, 0.0}}) {
    config.train.clip_norm = clip_norm;
    int64_t decisions = 0;
    simulate(scenario, config, [&, share = share](const SimulatedDecision& simulated) {
      EXPECT_EQ(simulated.decision.clipped_share, share);
      ++decisions;
    });
    EXPECT_GT(decisions, 5);
  }
}

TEST(SimulatedRun, NoPolicyIsFasterThanTheClairvoyant) {
  int64_t moved = 0;
  for (int64_t number = 0; number < 4; ++number) {
    const Scenario scenario = scenario_of(number);
    for (const PolicyKind policy : {PolicyKind::copus, PolicyKind::cona, PolicyKind::cbs_optimistic}) {
      const RegretOutcome outcome = outcome_of(scenario, simulate(scenario, under_policy(scenario, policy)));
      EXPECT_LE(outcome.clairvoyant_time, 1 + 1e-12);
      EXPECT_GE(outcome.time, outcome.clairvoyant_time * (1 - 1e-9)) << describe(scenario);
      moved += outcome.relayouts;
    }
  }
  EXPECT_GT(moved, 1);
}

TEST(SimulatedRun, SwitchesTakeTheirTruePauses) {
  int64_t relayouts = 0, batch_changes = 0;
  for (int64_t number = 0; number < 4; ++number) {
    const Scenario scenario = scenario_of(number);
    const SimulatedRun run = simulate(scenario, under_policy(scenario, PolicyKind::copus));
    EXPECT_DOUBLE_EQ(run.pause_seconds, static_cast<double>(run.relayouts) * scenario.pause_seconds);
    relayouts += run.relayouts;
    batch_changes += run.batch_changes;
  }
  EXPECT_GT(relayouts, 0);
  EXPECT_GT(batch_changes, 0);
}

TEST(SimulatedRun, AChangeOfTheBatchStallsSoManySteps) {
  int compared = 0;
  for (int64_t number = 0; number < 10; ++number) {
    Scenario scenario = scenario_of(number);
    if (scenario.end.kind != ScenarioEnd::Kind::progress) continue;
    RunConfig config = under_policy(scenario, PolicyKind::late_switch);
    config.adapt.late_switch_share = 0.2;
    config.adapt.late_switch_batch = 32;
    const SimulatedRun usual = simulate(scenario, config);
    scenario.stalled_steps = 5.5;
    const SimulatedRun stalled = simulate(scenario, config);
    ASSERT_EQ(usual.batch_changes, 1) << describe(scenario);
    EXPECT_NEAR((stalled.seconds - usual.seconds) / scenario.seconds.at(usual.last), 5.5, 1e-6) << describe(scenario);
    ++compared;
  }
  EXPECT_GT(compared, 2);
}

// ln(noise scale that the controller sees / true noise scale) at each decision of a static run.
std::vector<double> errors_of_noise(const SimulatedWorld& world, const RunConfig& config) {
  std::vector<double> errors;
  simulate(world, config, [&](const SimulatedDecision& simulated) {
    if (simulated.decision.noise_scale) {
      errors.push_back(std::log(*simulated.decision.noise_scale / simulated.truth.noise_scale));
    }
  });
  return errors;
}

double spread(const std::vector<double>& values) {
  double sum = 0, squares = 0;
  for (const double value : values) sum += value, squares += value * value;
  const auto count = static_cast<double>(values.size());
  return std::sqrt(squares / count - sum * sum / count / count);
}

TEST(SimulatedRun, TheNoiseScaleDrifts) {
  Scenario scenario = scenario_of(4);
  const RunConfig config = under_policy(scenario, PolicyKind::fixed);
  const double usual = spread(errors_of_noise(scenario, config));
  scenario.noise_drift = 1;
  EXPECT_GT(spread(errors_of_noise(scenario, config)), 2 * usual);
}

TEST(SimulatedRun, TheNoiseScaleRisesAsTheRateDecays) {
  Scenario scenario = scenario_of(4);
  RunConfig config = under_policy(scenario, PolicyKind::fixed);
  config.optimizer.schedule = LearningRateSchedule::cosine;
  scenario.rate_feedback = 1;
  const double batch_alone = errors_of_noise(scenario, config).back();
  scenario.noise_follows_schedule = true;
  EXPECT_GT(errors_of_noise(scenario, config).back(), batch_alone + 0.3);
}

// Every change is visible at the next decision, or at the end of the run.
TEST(SimulatedRun, CountsChangesOfTheGlobalBatchAsARunsSummaryDoes) {
  int64_t joint = 0, micro_batch_alone = 0;
  for (int64_t number = 0; number < 8; ++number) {
    const Scenario scenario = scenario_of(number);
    int64_t relayouts = 0, batch_changes = 0;
    std::optional<Configuration> before;
    const auto note = [&](const Configuration& now) {
      if (before) {
        const bool is_relayout = before->strategy != now.strategy, has_batch = before->global_batch != now.global_batch;
        relayouts += is_relayout;
        batch_changes += has_batch;
        joint += is_relayout && has_batch;
        micro_batch_alone += !is_relayout && !has_batch && *before != now;
      }
      before = now;
    };
    const SimulatedRun run = simulate(scenario, under_policy(scenario, PolicyKind::copus),
                                      [&](const SimulatedDecision& simulated) { note(simulated.decision.current); });
    note(run.last);
    EXPECT_EQ(run.relayouts, relayouts) << describe(scenario);
    EXPECT_EQ(run.batch_changes, batch_changes) << describe(scenario);
  }
  EXPECT_GT(joint, 0);
  EXPECT_GT(micro_batch_alone, 0);
}

// If a run that ends at a given progress switches only once, nothing that it decides depends on the pause, so the
// pause's length affects only the total time.
TEST(SimulatedRun, ALongerPauseMakesARunAsMuchLonger) {
  int64_t compared = 0;
  for (int64_t number = 0; number < 30 && compared < 3; ++number) {
    Scenario scenario = scenario_of(number);
    if (scenario.end.kind != ScenarioEnd::Kind::progress) continue;
    scenario.pause_seconds = 0;
    const SimulatedRun quick = simulate(scenario, under_policy(scenario, PolicyKind::copus_paper));
    scenario.pause_seconds = quick.seconds / 100;
    const SimulatedRun slow = simulate(scenario, under_policy(scenario, PolicyKind::copus_paper));
    if (quick.relayouts != 1 || slow.relayouts != 1 || slow.steps != quick.steps) continue;
    EXPECT_NEAR(slow.seconds / quick.seconds, 1.01, 1e-9) << describe(scenario);
    ++compared;
  }
  EXPECT_GT(compared, 0);
}

// The controller knows phi only through the estimator, which must find the true value.
TEST(SimulatedRun, TheControllerSeesTheNoiseScale) {
  double logarithms = 0, count = 0;
  for (int64_t number = 0; number < 15; ++number) {
    Scenario scenario = scenario_of(number);
    scenario.rate_feedback = 0;
    scenario.truth = Truth(WorthShape::hyperbola, {{.begin = 0, .noise_scale = 20, .critical_batch = 40}});
    simulate(scenario, under_policy(scenario, PolicyKind::fixed), [&](const SimulatedDecision& simulated) {
      if (!simulated.decision.noise_scale) return;
      logarithms += std::log(*simulated.decision.noise_scale / 20);
      ++count;
    });
  }
  ASSERT_GT(count, 100);
  EXPECT_NEAR(logarithms / count, 0, 0.05);
}

TEST(SimulatedRun, SaysWhenItWasAtEachMilestone) {
  for (int64_t number = 0; number < 6; ++number) {
    Scenario scenario = scenario_of(number);
    const double end = scenario.end.value;
    if (scenario.end.kind != ScenarioEnd::Kind::progress) continue;
    scenario.milestones = {end / 1e5, end / 9e4, end / 3, end};
    const SimulatedRun run = simulate(scenario, under_policy(scenario, PolicyKind::fixed));
    const Configuration first = configuration_of(scenario.config);
    ASSERT_EQ(run.arrivals.size(), 4u) << "two of them within the first step";
    for (size_t i = 0; i < 4; ++i) {
      const double needed = scenario.truth.samples_to(scenario.milestones[i], first.global_batch);
      EXPECT_NEAR(run.arrivals[i].samples / needed, 1, 1e-9);
      EXPECT_NEAR(
          run.arrivals[i].seconds * static_cast<double>(first.global_batch) / (needed * scenario.seconds.at(first)), 1,
          1e-9);
    }
  }
}

TEST(SimulatedRun, ASwitchToWhatTheWorldLacksIsVetoed) {
  int64_t compared = 0;
  for (int64_t number = 0; number < 8; ++number) {
    Scenario scenario = scenario_of(number);
    const RunConfig config = under_policy(scenario, PolicyKind::copus_paper);
    const SimulatedRun free = simulate(scenario, config);
    if (free.last == configuration_of(config)) continue;
    scenario.seconds.erase(free.last);
    const SimulatedRun run = simulate(scenario, config);
    EXPECT_TRUE(scenario.seconds.contains(run.last)) << to_string(run.last);
    ++compared;
  }
  EXPECT_GT(compared, 2);
}

TEST(SimulatedRun, RefusesCandidatesThatTheScenarioDoesNotKnow) {
  const Scenario scenario = scenario_of(0);
  RunConfig config = under_policy(scenario, PolicyKind::fixed);
  config.train.global_batch = 12;
  EXPECT_THROW(simulate(scenario, config), InternalError);
}

}  // namespace
}  // namespace copus
