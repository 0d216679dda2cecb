#include "copus/simulate/scenario.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iterator>
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

TEST(Scenario, TheChosenGroupLacksFamiliesOfTheOthers) {
  std::set<WorthFamily> worths[2];
  std::set<GrowthFamily> growths[2];
  for (const Scenario& scenario : scenarios()) {
    const auto group = static_cast<size_t>(group_of(scenario.number));
    worths[group].insert(scenario.worth);
    growths[group].insert(scenario.growth.family);
  }
  using enum WorthFamily;
  EXPECT_EQ(worths[0], (std::set{hyperbola, measured, kaplan, step_bound}));
  EXPECT_EQ(worths[1], (std::set{hyperbola, root, measured, kaplan, olmo, step_bound}));
  EXPECT_EQ(growths[0], (std::set{GrowthFamily::power, GrowthFamily::saturating, GrowthFamily::falling_first}));
  EXPECT_EQ(growths[1].count(GrowthFamily::decay_jump), 1);
  for (int64_t i = 0; i < 10; ++i) {
    for (const ScenarioGroup group : all_values<ScenarioGroup>()) {
      EXPECT_EQ(group_of(number_in(group, i)), group);
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

// A run that is cut short is the beginning of the whole run: it has the same true values but ends sooner.
TEST(Scenario, ACutRunEndsAfterSoManyStepsInItsFirstBatch) {
  const std::vector<SimulatedJob> jobs = {small_job()};
  for (int64_t number = 0; number < 20; ++number) {
    const Scenario cut = make_scenario(number, jobs, {.steps = 50}), &whole = scenarios()[static_cast<size_t>(number)];
    const int64_t batch = cut.config.train.global_batch;
    EXPECT_NEAR(cut.truth.samples_to(cut.best_static.progress, batch) / static_cast<double>(batch), 50, 1e-6);
    EXPECT_EQ(cut.end.kind, whole.end.kind);
    EXPECT_EQ(cut.seconds, whole.seconds);
    ASSERT_EQ(cut.truth.pieces().size(), whole.truth.pieces().size());
    EXPECT_EQ(cut.truth.pieces().back().begin, whole.truth.pieces().back().begin);
  }
}

// The families' laws are functions of the share of the run, which is 1 at the end of piece 256. This is where a run
// ends that ends at a given progress. If the run ends after a given time, it is where the best static run ends.
TEST(Scenario, TheLawsEndWhereTheRunEnds) {
  for (const Scenario& scenario : scenarios()) {
    EXPECT_NEAR(scenario.truth.pieces()[256].begin / scenario.best_static.progress, 1, 1e-9) << describe(scenario);
  }
}

// In all families except olmo and step_bound, critical batch / noise scale is the scenario's calibration throughout the
// run. In step_bound, the critical batch is constant at the beginning.
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

// In most scenarios by the prior, the critical batch grows with progress and does not depend on the noise scale.
TEST(Scenario, ThePriorFavoursTheLawByProgress) {
  const std::vector<SimulatedJob> jobs = {small_job()};
  int by_progress = 0, decaying = 0;
  constexpr int count = 60;
  for (int64_t i = 0; i < count; ++i) {
    const Scenario scenario = make_scenario(number_in(ScenarioGroup::by_prior, i), jobs);
    decaying += scenario.config.optimizer.schedule == LearningRateSchedule::cosine;
    EXPECT_GT(scenario.stalled_steps, 0);
    EXPECT_GT(scenario.noise_drift, 0);
    if (scenario.worth != WorthFamily::progress) continue;
    ++by_progress;
    const std::vector<TruthPiece>& pieces = scenario.truth.pieces();
    const auto exponent = [&](size_t from, size_t to) {
      return std::log(pieces[to].critical_batch / pieces[from].critical_batch) /
             std::log((pieces[to].begin + pieces[to + 1].begin) / (pieces[from].begin + pieces[from + 1].begin));
    };
    EXPECT_NEAR(exponent(32, 64), exponent(64, 250), 1e-6) << describe(scenario);
  }
  EXPECT_NEAR(by_progress, 0.6 * count, 3 * std::sqrt(0.24 * count));
  EXPECT_NEAR(decaying, 0.5 * count, 3 * std::sqrt(0.25 * count));
}

TEST(Scenario, AnEarlierRunShowsItsCriticalBatchesWithErrors) {
  double squares = 0;
  int count = 0;
  for (const Scenario& scenario : scenarios()) {
    const std::vector<MeasuredCriticalBatch> measured = measured_critical_batches(scenario);
    ASSERT_EQ(measured.size(), 3);
    for (size_t i = 0; i < 3; ++i) {
      const double progress = scenario.best_static.progress * 0.01 * std::pow(4, static_cast<double>(i));
      const auto after = std::ranges::find_if(scenario.truth.pieces(),
                                              [&](const TruthPiece& piece) { return piece.begin > progress; });
      const double sequence = static_cast<double>(scenario.config.train.sequence_length);
      const int64_t batch = scenario.config.train.global_batch;
      const size_t piece = static_cast<size_t>(after - scenario.truth.pieces().begin()) - 1;
      const double shown = scenario.truth.worth(8 * batch, piece) / scenario.truth.worth(batch, piece);
      const double critical = static_cast<double>(batch) * (8 * shown - 1) / (1 - shown);
      const double error = std::log(measured[i].critical_batch / sequence / critical);
      const double over_hyperbola = critical / scenario.truth.pieces()[piece].critical_batch;
      if (scenario.worth == WorthFamily::root) {
        EXPECT_GT(over_hyperbola, 1.9);
      } else if (scenario.worth != WorthFamily::measured) {
        EXPECT_NEAR(over_hyperbola, 1, 1e-6);
      }
      squares += error * error;
      ++count;
      EXPECT_LT(i == 0 ? 0 : measured[i - 1].tokens, measured[i].tokens);
    }
  }
  EXPECT_NEAR(std::sqrt(squares / count), 0.3, 0.05);
}

}  // namespace
}  // namespace copus
