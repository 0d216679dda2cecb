#include "copus/simulate/truth.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace copus {
namespace {

constexpr double no_target = std::numeric_limits<double>::infinity();

// Two pieces with critical batches of 10 and 40, cut at 100 samples of progress.
Truth two_pieces() {
  return {WorthShape::hyperbola, {{.begin = 0, .critical_batch = 10}, {.begin = 100, .critical_batch = 40}}};
}

TEST(Truth, SamplesToAProgressAreThoseOfEachPiece) {
  const Truth truth = two_pieces();
  EXPECT_DOUBLE_EQ(truth.samples_to(50, 10), 50 * 2);
  EXPECT_DOUBLE_EQ(truth.samples_to(100, 10), 100 * 2);
  EXPECT_DOUBLE_EQ(truth.samples_to(180, 10), 100 * 2 + 80 * 1.25);
}

TEST(Truth, ALargerLearningRateBringsItsFactorUpToTheCriticalBatch) {
  const std::vector<TruthPiece> pieces = {{.begin = 0, .critical_batch = 100}};
  const Truth plain(WorthShape::hyperbola, pieces);
  for (const double alpha : {0.25, 0.5}) {
    const Truth gaining(WorthShape::hyperbola, pieces,
                        {.alpha = alpha, .rule = {.exponent = 0.5, .reference_batch = 4}});
    const auto gain = [&](int64_t batch) { return gaining.worth(batch, 0) / plain.worth(batch, 0); };
    EXPECT_DOUBLE_EQ(gain(1), std::pow(1.0 / 4, alpha));
    EXPECT_DOUBLE_EQ(gain(4), 1);
    EXPECT_DOUBLE_EQ(gain(64), std::pow(16, alpha));
    EXPECT_DOUBLE_EQ(gain(400), std::pow(25, alpha)) << "no more than in a batch of 100";
  }
}

TEST(TruthWalk, GetsAsFarInAnySteps) {
  const Truth truth = two_pieces();
  for (const int steps : {2100, 300, 7}) {
    TruthWalk walk(truth);
    for (int i = 0; i < steps; ++i) walk.advance(2100.0 / steps, 10, no_target);
    EXPECT_NEAR(truth.samples_to(walk.progress(), 10), 2100, 1e-9) << steps;
  }
}

TEST(TruthWalk, SaysHowManySamplesItNeeded) {
  const Truth truth = two_pieces();
  TruthWalk walk(truth);
  EXPECT_DOUBLE_EQ(walk.advance(50, 10, 180), 50);
  EXPECT_DOUBLE_EQ(walk.progress(), 25);
  EXPECT_DOUBLE_EQ(walk.advance(400, 10, 180), 300 - 50);
  EXPECT_GT(walk.progress(), 180);
  EXPECT_EQ(walk.piece().critical_batch, 40);
  EXPECT_DOUBLE_EQ(walk.worth(10), 0.8);
}

}  // namespace
}  // namespace copus
