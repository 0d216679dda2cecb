#include "copus/statistics/compared/loss_curve.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "copus/base/error.h"

namespace copus {
namespace {

using Kind = TargetCrossing::Kind;

const std::vector<Evaluation> curve = {{1, 100, 4.0}, {2, 300, 3.0}, {4, 700, 2.0}, {5, 800, 2.5}, {6, 900, 1.5}};

void expect_reached(double target, double seconds, double tokens) {
  const TargetCrossing crossing = time_to_target(curve, target);
  EXPECT_EQ(crossing.kind, Kind::reached) << target;
  EXPECT_DOUBLE_EQ(crossing.seconds, seconds) << target;
  EXPECT_DOUBLE_EQ(crossing.tokens, tokens) << target;
}

TEST(LossCurve, InterpolatesBetweenTheFirstEvaluationBelowAndTheOneBefore) {
  expect_reached(2.75, 2.5, 400);  // a quarter of the way from the second evaluation to the third
  expect_reached(1.75, 5.75, 875);
}

TEST(LossCurve, AnEvaluationAtTheTargetIsTheTimeItself) {
  expect_reached(4.0, 1, 100);
  expect_reached(3.0, 2, 300);
  expect_reached(2.0, 4, 700);  // although the loss rises again afterwards
}

TEST(LossCurve, SaysWhereNobodyKnows) {
  EXPECT_EQ(time_to_target(curve, 1.4).kind, Kind::never);
  EXPECT_EQ(time_to_target(curve, 4.1).kind, Kind::before);
  EXPECT_EQ(time_to_target({}, 4.1).kind, Kind::never);
  const std::vector<Evaluation> broken = {{1, 100, std::numeric_limits<double>::quiet_NaN()}};
  EXPECT_THROW(time_to_target(broken, 1), InternalError);
}

}  // namespace
}  // namespace copus
