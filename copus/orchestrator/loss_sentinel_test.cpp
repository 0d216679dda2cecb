#include "copus/orchestrator/loss_sentinel.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <iostream>
#include <random>

namespace copus {
namespace {

// A run whose loss falls as 1.69 + 411 / tokens^0.28 (Hoffmann et al. 2022) and whose batch grows after so many steps.
// `extra` is added to the losses after that, by steps since.
struct LossCourse {
  int64_t steps_before = 2000, steps_since = 500;
  double scatter = 0.02;  // of a step's loss
  double tokens_of_a_step = 1e6;
  std::function<double(int64_t)> extra = [](int64_t) { return 0.0; };

  LossSentinel play(unsigned seed) const {
    std::mt19937_64 random(seed);
    std::normal_distribution<double> noise(0, scatter);
    LossSentinel sentinel;
    for (int64_t step = 1; step <= steps_before + steps_since; ++step) {
      const double loss = 1.69 + 411 / std::pow(static_cast<double>(step) * tokens_of_a_step, 0.28);
      const int64_t since = step - steps_before;
      if (since == 1) sentinel.batch_grew();
      sentinel.observe(static_cast<double>(step), loss + noise(random) + (since > 0 ? extra(since) : 0));
    }
    return sentinel;
  }

  // The share of 1000 runs whose loss is called more than `allowed` nats too high, by two deviations.
  double alarms(double allowed) const {
    int64_t alarms = 0;
    for (unsigned seed = 1; seed <= 1000; ++seed) {
      const auto excess = play(seed).excess();
      alarms += excess && excess->nats - allowed > 2 * excess->deviation;
    }
    return static_cast<double>(alarms) / 1000;
  }
};

TEST(LossSentinel, MeasuresHowFarTheLossIsAboveItsForecast) {
  LossCourse run{.scatter = 0.001, .extra = [](int64_t) { return 0.03; }};
  const auto excess = run.play(1).excess();
  ASSERT_TRUE(excess);
  EXPECT_NEAR(excess->nats, 0.03, 0.001);
  EXPECT_LT(excess->deviation, 0.0002);
  // A jump that fades within the first quarter does not count.
  run.extra = [](int64_t since) { return since < 100 ? 5.0 : 0.0; };
  EXPECT_NEAR(run.play(1).excess().value().nats, 0, 0.001);
}

TEST(LossSentinel, ItsDeviationIsThatOfTheExcess) {
  const LossCourse run;
  double sum = 0, squares = 0, claimed = 0;
  constexpr int runs = 400;
  for (unsigned seed = 1; seed <= runs; ++seed) {
    const auto excess = run.play(seed).excess().value();
    sum += excess.nats / runs;
    squares += excess.nats * excess.nats / runs;
    claimed += excess.deviation / runs;
  }
  EXPECT_NEAR(std::sqrt(squares - sum * sum), claimed, 0.1 * claimed) << "a deviation of 400 values is known to 4 %";
}

// Of other falls than the forecast's the line errs: by how much, at worst, half as far again?
TEST(LossSentinel, OtherLawsOfTheLossMakeAnErrorBelowTheContract) {
  for (const double exponent : {0.1, 0.2, 0.3, 0.4}) {
    LossSentinel sentinel;
    const double scale = std::pow(2e3, exponent);  // a nat above the least loss where the batch grows
    for (int64_t step = 1; step <= 2900; ++step) {
      if (step == 2001) sentinel.batch_grew();
      sentinel.observe(static_cast<double>(step), 1.69 + scale / std::pow(static_cast<double>(step), exponent));
    }
    const double error = sentinel.excess().value().nats;
    std::cout << "exponent " << exponent << ": " << error << " nats\n";
    EXPECT_LT(std::abs(error), 0.01);
  }
}

// What chance does, and what it leaves to be seen, where a step's loss scatters by 0.02 nats.
TEST(LossSentinel, FalseAlarmsAreRareAndALossThatIsTooHighIsSeen) {
  constexpr double contract = 0.01;
  for (const int64_t since : {32, 128, 512}) {
    LossCourse run{.steps_since = since};
    const double false_alarms = run.alarms(contract);
    run.extra = [](int64_t) { return 0.03; };
    const double seen = run.alarms(contract);
    std::cout << since << " steps: false alarms " << false_alarms << ", an excess of 0.03 nats seen " << seen << '\n';
    EXPECT_LT(false_alarms, 0.025);
    EXPECT_GT(seen, 0.95);
  }
}

TEST(LossSentinel, SaysNothingBeforeThereAreStepsAndWhereTheForecastIsOld) {
  LossSentinel sentinel;
  EXPECT_FALSE(sentinel.excess());
  EXPECT_TRUE(sentinel.batch_grew());
  EXPECT_FALSE(sentinel.excess());
  EXPECT_FALSE((LossCourse{.steps_since = 31}).play(1).excess());
  EXPECT_FALSE((LossCourse{.steps_before = 63}).play(1).excess());
  EXPECT_TRUE((LossCourse{.steps_since = 900}).play(1).excess());
  EXPECT_FALSE((LossCourse{.steps_since = 1100}).play(1).excess());
  LossSentinel restarted = LossCourse().play(1);
  restarted.restart();
  EXPECT_FALSE(restarted.excess());
}

// As where a job was paused for longer than it had run.
TEST(LossSentinel, APlaceThatJumpsLeavesTooLittleForAForecast) {
  LossSentinel sentinel;
  for (int64_t step = 1; step <= 3000; ++step)
    sentinel.observe(static_cast<double>(step), 3 + 0.1 * static_cast<double>(step % 3));
  for (int64_t step = 1; step <= 64; ++step) sentinel.observe(1e4 + static_cast<double>(step), 3);
  sentinel.batch_grew();
  for (int64_t step = 1; step <= 64; ++step) sentinel.observe(1.1e4 + static_cast<double>(step), 4);
  EXPECT_FALSE(sentinel.excess());
}

TEST(LossSentinel, BatchesThatGrowInShortOrderAreComparedWithTheStepsBeforeAllOfThem) {
  LossCourse run{.steps_since = 63, .scatter = 0.001, .extra = [](int64_t) { return 0.03; }};
  LossSentinel sentinel = run.play(1);
  EXPECT_FALSE(sentinel.batch_grew());
  run.steps_since = 64;
  LossSentinel later = run.play(1);
  EXPECT_TRUE(later.batch_grew());
  for (int64_t step = 2065; step < 2165; ++step) {
    const double loss = 1.69 + 411 / std::pow(static_cast<double>(step) * run.tokens_of_a_step, 0.28) + 0.03;
    sentinel.observe(static_cast<double>(step), loss);
    later.observe(static_cast<double>(step), loss);
  }
  EXPECT_NEAR(sentinel.excess().value().nats, 0.03, 0.001);
  EXPECT_NEAR(later.excess().value().nats, 0, 0.001) << "there it was as high before";
}

TEST(LossSentinel, ItsStateReadsBack) {
  LossSentinel sentinel = LossCourse().play(1);
  StateValues written;
  written(sentinel);
  LossSentinel again;
  StateValues values(written.written());
  values(again);
  values.require_end();
  EXPECT_EQ(again.excess().value().nats, sentinel.excess().value().nats);
  EXPECT_EQ(again.excess().value().deviation, sentinel.excess().value().deviation);
}

}  // namespace
}  // namespace copus
