#include "copus/orchestrator/policies/move_value.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace copus {
namespace {

TEST(MoveValue, OfACertainGainIsItsShareOfTheTimeLessThePause) {
  // Twice as fast: half of the 90 s after the pause.
  EXPECT_NEAR(expected_seconds_saved({.gain = std::log(2), .pause_seconds = 10, .trial_seconds = 2}, 100), 35, 1e-12);
  // No gain: two pauses; the trial costs nothing.
  EXPECT_NEAR(expected_seconds_saved({.pause_seconds = 10, .trial_seconds = 2}, 100), -20, 1e-12);
  // Half as fast during the trial, then back.
  EXPECT_NEAR(expected_seconds_saved({.gain = -std::log(2), .pause_seconds = 10, .trial_seconds = 2}, 100), -22, 1e-12);
  EXPECT_NEAR(expected_seconds_saved({.gain = std::log(2), .price_seconds = 7}, 100), 43, 1e-12);
}

TEST(MoveValue, OfAPauseThatIsLongerThanTheTimeLeftIsALoss) {
  EXPECT_LT(expected_seconds_saved({.gain = 1, .deviation = 0.1, .pause_seconds = 10}, 5), -9);
}

// Draws the truth, tries it, and stays or goes back.
TEST(MoveValue, IsWhatTryingBringsOnAverage) {
  for (const double gain : {-0.1, 0.0, 0.05}) {
    for (const double deviation : {0.03, 0.2}) {
      const MoveProspect move{.gain = gain, .deviation = deviation, .pause_seconds = 3, .trial_seconds = 5};
      std::mt19937_64 random(7);
      std::normal_distribution<double> normal(gain, deviation);
      constexpr int draws = 400'000;
      double saved = 0;
      for (int i = 0; i < draws; ++i) {
        const double ratio = std::exp(-normal(random));
        saved += ratio < 1 ? (1000 - 3) * (1 - ratio) - 3 : -5 * (ratio - 1) - 6;
      }
      // One standard error of the mean of this many draws is below 0.25 s.
      EXPECT_NEAR(expected_seconds_saved(move, 1000), saved / draws, 1) << gain << ", " << deviation;
    }
  }
}

TEST(MoveValue, GrowsWithWhatIsNotKnown) {
  EXPECT_LT(expected_seconds_saved({.gain = -0.02, .deviation = 0.01, .pause_seconds = 1}, 1000), 0);
  EXPECT_GT(expected_seconds_saved({.gain = -0.02, .deviation = 0.06, .pause_seconds = 1}, 1000), 0);
}

}  // namespace
}  // namespace copus
