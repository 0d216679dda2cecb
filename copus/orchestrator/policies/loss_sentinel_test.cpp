#include "copus/orchestrator/policies/loss_sentinel.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <iostream>
#include <random>

namespace copus {
namespace {

// A run whose loss falls as a power of the steps, as in Hoffmann et al. 2022. The batch grows after `steps_before`
// steps, when the loss is a nat above the least loss. `extra` is added to the losses after that, by steps since.
struct LossCourse {
  int64_t steps_before = 2000, steps_since = 490;
  double scatter = 0.02;  // of a step's loss
  double exponent = 0.28;
  std::function<double(int64_t)> extra = [](int64_t) { return 0.0; };

  LossSentinel play(unsigned seed) const {
    std::mt19937_64 random(seed);
    std::normal_distribution<double> noise(0, scatter);
    LossSentinel sentinel;
    for (int64_t step = 1; step <= steps_before + steps_since; ++step) {
      const double loss = 1.69 + std::pow(static_cast<double>(step) / static_cast<double>(steps_before), -exponent);
      const int64_t since = step - steps_before;
      if (since == 1) sentinel.begin_watch();
      sentinel.add(static_cast<double>(step), loss + noise(random) + (since > 0 ? extra(since) : 0));
    }
    return sentinel;
  }

  // The share of 400 runs whose loss is reported as more than `allowed` nats too high, by two deviations.
  double alarms(double allowed) const {
    int64_t alarms = 0;
    for (unsigned seed = 1; seed <= 400; ++seed) {
      const auto excess = play(seed).excess();
      alarms += excess && excess->nats - allowed > 2 * excess->deviation;
    }
    return static_cast<double>(alarms) / 400;
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

// Chance alone exceeds the mean of a normal distribution by two deviations in 2.3 % of runs. The limit of 5 % leaves
// room for the error of counting over 400 runs, and for exponents between the tested ones.
TEST(LossSentinel, ItsDeviationIsWhatChanceDoes) {
  for (const double exponent : {0.1, 0.28, 0.8}) EXPECT_LT((LossCourse{.exponent = exponent}).alarms(0), 0.05);
}

// The run's loss falls with an exponent that may differ from the tested ones, and is a nat above its least loss when
// the batch grows. The forecast must never be so far below the loss that this alone breaks the contract.
TEST(LossSentinel, HoweverTheLossFallsTheForecastIsNotFarTooLow) {
  for (const double exponent : {0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.2}) {
    LossSentinel sentinel;
    const double scale = std::pow(2e3, exponent);
    for (int64_t step = 1; step <= 2480; ++step) {
      if (step == 2001) sentinel.begin_watch();
      sentinel.add(static_cast<double>(step), 1.69 + scale / std::pow(static_cast<double>(step), exponent));
    }
    const double error = sentinel.excess().value().nats;
    std::cout << "exponent " << exponent << ": " << error << " nats\n";
    EXPECT_LT(error, 0.002);
    EXPECT_GT(error, -0.02);
  }
}

// False alarms by chance, and excesses that are detected, if a step's loss scatters by 0.02 nats: in runs that fall as
// steeply as small models at their beginning, or hardly.
TEST(LossSentinel, FalseAlarmsAreRareAndALossThatIsTooHighIsSeen) {
  constexpr double contract = 0.01;
  for (const double exponent : {0.05, 0.28, 0.6, 1.0}) {
    for (const int64_t before : {300, 2000}) {
      for (const int64_t since : {int64_t{32}, before / 5}) {
        LossCourse run{.steps_before = before, .steps_since = since, .exponent = exponent};
        const double false_alarms = run.alarms(contract);
        run.extra = [](int64_t) { return 0.1; };
        const double seen = run.alarms(contract);
        run.extra = [](int64_t) { return 0.03; };
        std::cout << "exponent " << exponent << ", " << before << " + " << since << " steps: false alarms "
                  << false_alarms << ", an excess of 0.1 nats seen " << seen << ", of 0.03 " << run.alarms(contract)
                  << '\n';
        EXPECT_LT(false_alarms, 0.025);
        EXPECT_GT(seen, 0.95);
      }
    }
  }
}

TEST(LossSentinel, SaysNothingBeforeThereAreStepsAndWhereTheForecastIsOld) {
  LossSentinel sentinel;
  EXPECT_FALSE(sentinel.excess());
  EXPECT_TRUE(sentinel.begin_watch());
  EXPECT_FALSE(sentinel.excess());
  EXPECT_FALSE((LossCourse{.steps_since = 31}).play(1).excess());
  EXPECT_FALSE((LossCourse{.steps_before = 63}).play(1).excess());
  EXPECT_TRUE((LossCourse{.steps_since = 490}).play(1).excess());
  EXPECT_FALSE((LossCourse{.steps_since = 510}).play(1).excess());
  LossSentinel restarted = LossCourse().play(1);
  restarted.restart();
  EXPECT_FALSE(restarted.excess());
}

// For example a job that was paused for longer than it had run.
TEST(LossSentinel, APlaceThatJumpsLeavesTooLittleForAForecast) {
  LossSentinel sentinel;
  for (int64_t step = 1; step <= 3000; ++step)
    sentinel.add(static_cast<double>(step), 3 + 0.1 * static_cast<double>(step % 3));
  for (int64_t step = 1; step <= 64; ++step) sentinel.add(1e4 + static_cast<double>(step), 3);
  sentinel.begin_watch();
  for (int64_t step = 1; step <= 64; ++step) sentinel.add(1.1e4 + static_cast<double>(step), 4);
  EXPECT_FALSE(sentinel.excess());
}

TEST(LossSentinel, BatchesThatGrowInShortOrderAreComparedWithTheStepsBeforeAllOfThem) {
  LossCourse run{.steps_since = 63, .scatter = 0.001, .extra = [](int64_t) { return 0.03; }};
  LossSentinel sentinel = run.play(1);
  EXPECT_FALSE(sentinel.begin_watch());
  run.steps_since = 64;
  LossSentinel later = run.play(1);
  EXPECT_TRUE(later.begin_watch());
  for (int64_t step = 2065; step < 2165; ++step) {
    const double loss = 1.69 + std::pow(static_cast<double>(step) / 2000, -run.exponent) + 0.03;
    sentinel.add(static_cast<double>(step), loss);
    later.add(static_cast<double>(step), loss);
  }
  EXPECT_NEAR(sentinel.excess().value().nats, 0.03, 0.001);
  EXPECT_NEAR(later.excess().value().nats, 0, 0.002) << "there it was as high before";
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
