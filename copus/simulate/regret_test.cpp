#include "copus/simulate/regret.h"

#include <gtest/gtest.h>

#include <cmath>

#include "copus/simulate/testing/small_job.h"

namespace copus {
namespace {

RegretOutcome outcome(int64_t scenario, double time, double clairvoyant_time) {
  RegretOutcome made;
  made.scenario = scenario;
  made.time = time;
  made.clairvoyant_time = clairvoyant_time;
  return made;
}

TEST(Regret, SummarisesByHand) {
  const RegretSummary summary =
      summarise({outcome(0, 0.95, 0.9), outcome(2, 1.009, 0.98), outcome(4, 1.025, 1), outcome(6, 1.2, 0.9)});
  EXPECT_EQ(summary.scenarios, 4);
  EXPECT_NEAR(summary.clairvoyant_gain, (0.1 + 0.02 + 0 + 0.1) / 4, 1e-12);
  EXPECT_NEAR(summary.captured, (0.05 - 0.009 - 0.025 - 0.2) / 0.22, 1e-12);
  EXPECT_DOUBLE_EQ(summary.within_1_percent, 0.5);
  EXPECT_DOUBLE_EQ(summary.within_3_percent, 0.75);
  EXPECT_NEAR(summary.median_slowdown, 0.017, 1e-12);
  EXPECT_NEAR(summary.worst_slowdown, 0.2, 1e-12);
  EXPECT_TRUE(std::isnan(summarise({outcome(0, 1, 1)}).captured));
  EXPECT_TRUE(std::isnan(summarise({outcome(0, 1.1, 1 - 1e-15)}).captured)) << "there is nothing to gain but rounding";
}

TEST(Regret, TheWorstComeFirst) {
  const std::vector<RegretOutcome> worst = worst_of({outcome(0, 1, 1), outcome(2, 1.5, 1), outcome(4, 1.2, 1)}, 2);
  ASSERT_EQ(worst.size(), 2);
  EXPECT_EQ(worst[0].scenario, 2);
  EXPECT_EQ(worst[1].scenario, 4);
  EXPECT_EQ(worst_of({outcome(0, 1, 1)}, 5).size(), 1);
}

// A run makes half the progress of a static run in the same seconds. Measured by time at equal progress, it is equally
// late whether the scenario ends at a progress or after a time.
TEST(Regret, BothKindsOfEndsMeasureTheSameTime) {
  Scenario scenario = make_scenario(0, {small_job()});
  const StraightRun straight = best_static(scenario.truth, scenario.seconds, {ScenarioEnd::Kind::progress, 1000});
  const double step = scenario.seconds.at(straight.configuration);
  const auto time_of = [&](ScenarioEnd end, const SimulatedRun& run) {
    scenario.end = end;
    scenario.best_static = best_static(scenario.truth, scenario.seconds, end);
    scenario.clairvoyant = clairvoyant(scenario.truth, scenario.seconds, scenario.pause_seconds, end);
    return outcome_of(scenario, run).time;
  };
  EXPECT_DOUBLE_EQ(time_of({ScenarioEnd::Kind::progress, 1000}, {.seconds = 2 * straight.seconds, .progress = 1000}),
                   2);
  EXPECT_DOUBLE_EQ(time_of({ScenarioEnd::Kind::progress, 1000}, {.seconds = straight.seconds, .progress = 1000}), 1);
  TruthWalk walk(scenario.truth);
  const int64_t batch = straight.configuration.global_batch;
  walk.advance(straight.seconds / 2 / step * static_cast<double>(batch), batch, 1e18);
  EXPECT_NEAR(time_of({ScenarioEnd::Kind::seconds, straight.seconds},
                      {.seconds = straight.seconds, .progress = walk.progress()}),
              2, 1e-9);
}

}  // namespace
}  // namespace copus
