#include "copus/simulate/scenario.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "copus/simulate/testing/small_job.h"

namespace copus {
namespace {

constexpr int64_t many_scenarios = 200;

const std::vector<Scenario>& scenarios() {
  static const std::vector<Scenario> made = [] {
    const std::vector<SimulatedJob> jobs = {small_job()};
    std::vector<Scenario> all;
    for (int64_t number = 0; number < many_scenarios; ++number) all.push_back(make_scenario(number, jobs));
    return all;
  }();
  return made;
}

TEST(Scenario, FollowsFromItsNumber) {
  const std::vector<SimulatedJob> jobs = {small_job()};
  for (const int64_t number : {0, 1, 17}) {
    const Scenario again = make_scenario(number, jobs), &once = scenarios()[static_cast<size_t>(number)];
    EXPECT_EQ(describe(again), describe(once));
    EXPECT_EQ(again.seconds, once.seconds);
    EXPECT_EQ(again.config, once.config);
    EXPECT_EQ(again.clairvoyant.seconds, once.clairvoyant.seconds);
  }
  EXPECT_NE(describe(scenarios()[0]).substr(3), describe(scenarios()[2]).substr(3));
}

TEST(Scenario, TheChosenHalfLacksFamiliesOfTheOther) {
  std::set<WorthFamily> worths[2];
  std::set<GrowthFamily> growths[2];
  for (const Scenario& scenario : scenarios()) {
    const auto half = static_cast<size_t>(half_of(scenario.number));
    worths[half].insert(scenario.worth);
    growths[half].insert(scenario.growth.family);
  }
  using enum WorthFamily;
  EXPECT_EQ(worths[0], (std::set{hyperbola, measured, kaplan, step_bound}));
  EXPECT_EQ(worths[1], (std::set{hyperbola, root, measured, kaplan, olmo, step_bound}));
  EXPECT_EQ(growths[0], (std::set{GrowthFamily::power, GrowthFamily::saturating, GrowthFamily::falling_first}));
  EXPECT_EQ(growths[1].count(GrowthFamily::decay_jump), 1);
  for (int64_t i = 0; i < 10; ++i) {
    for (const ScenarioHalf half : {ScenarioHalf::chosen, ScenarioHalf::held_back}) {
      EXPECT_EQ(half_of(number_in(half, i)), half);
    }
  }
}

TEST(Scenario, BeginsInThePlansFastestConfigurationOfItsBatch) {
  const SimulatedJob job = small_job();
  for (const Scenario& scenario : scenarios()) {
    const Configuration first = configuration_of(scenario.config);
    EXPECT_EQ(first, fastest_believed(*job.believed, first.global_batch).configuration);
    EXPECT_TRUE(scenario.seconds.contains(first));
    EXPECT_EQ(scenario.config.adapt.policy, PolicyKind::none);
  }
}

TEST(Scenario, ClairvoyantIsNoSlowerThanBestStatic) {
  std::set<ScenarioEnd::Kind> ends;
  for (const Scenario& scenario : scenarios()) {
    ends.insert(scenario.end.kind);
    EXPECT_LE(scenario.clairvoyant.seconds, scenario.best_static.seconds * (1 + 1e-12)) << describe(scenario);
    EXPECT_GE(scenario.clairvoyant.progress, scenario.best_static.progress * (1 - 1e-12)) << describe(scenario);
  }
  EXPECT_EQ(ends.size(), 2);
}

TEST(Scenario, ARunInItsFirstBatchHasTwoToTwentyThousandSteps) {
  for (const Scenario& scenario : scenarios()) {
    const double progress = scenario.best_static.progress;
    const auto batch = static_cast<double>(scenario.config.train.global_batch);
    const double steps = scenario.truth.samples_to(progress, scenario.config.train.global_batch) / batch;
    EXPECT_GE(steps, 2000 * (1 - 1e-9)) << describe(scenario);
    EXPECT_LE(steps, 20'000 * (1 + 1e-9)) << describe(scenario);
  }
}

// A run that is cut short is the beginning of the whole one: the same truth, and an end that is sooner.
TEST(Scenario, ACutRunEndsAfterSoManyStepsInItsFirstBatch) {
  const std::vector<SimulatedJob> jobs = {small_job()};
  for (int64_t number = 0; number < 20; ++number) {
    const Scenario cut = make_scenario(number, jobs, 50), &whole = scenarios()[static_cast<size_t>(number)];
    const int64_t batch = cut.config.train.global_batch;
    EXPECT_NEAR(cut.truth.samples_to(cut.best_static.progress, batch) / static_cast<double>(batch), 50, 1e-6);
    EXPECT_EQ(cut.end.kind, whole.end.kind);
    EXPECT_EQ(cut.seconds, whole.seconds);
    ASSERT_EQ(cut.truth.pieces().size(), whole.truth.pieces().size());
    EXPECT_EQ(cut.truth.pieces().back().begin, whole.truth.pieces().back().begin);
  }
}

// The laws' share 1, the border of piece 256, is where the run ends, or the best static run where seconds end it.
TEST(Scenario, TheLawsEndWhereTheRunEnds) {
  for (const Scenario& scenario : scenarios()) {
    EXPECT_NEAR(scenario.truth.pieces()[256].begin / scenario.best_static.progress, 1, 1e-9) << describe(scenario);
  }
}

// The end of the run as the families have it: hyperbola and others keep critical batch / noise scale, a run that is
// bound by steps does not in its beginning.
TEST(Scenario, TheNoiseScaleTellsTheCriticalBatchOrDoesNot) {
  for (const Scenario& scenario : scenarios()) {
    const std::vector<TruthPiece>& pieces = scenario.truth.pieces();
    std::set<bool> agrees;
    for (const TruthPiece& piece : pieces) {
      const double ratio = piece.critical_batch / piece.noise_scale / scenario.calibration;
      agrees.insert(0.999 < ratio && ratio < 1.001);
    }
    const bool is_loose = scenario.worth == WorthFamily::olmo || scenario.worth == WorthFamily::step_bound;
    EXPECT_EQ(agrees.contains(false), is_loose) << describe(scenario);
    if (scenario.worth == WorthFamily::step_bound) {
      EXPECT_EQ(pieces[0].critical_batch, pieces[1].critical_batch);
    }
  }
}

}  // namespace
}  // namespace copus
