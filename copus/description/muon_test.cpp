#include "copus/description/muon.h"

#include <gtest/gtest.h>

#include <cmath>

namespace copus {
namespace {

double map_value(const std::vector<QuinticPolynomial>& polynomials, double x) {
  for (const QuinticPolynomial& p : polynomials) x = p.a * x + p.b * std::pow(x, 3) + p.c * std::pow(x, 5);
  return x;
}

// Five iterations map every singular value from 0.01 to 1 near to 1.
TEST(Muon, PolynomialsMapSingularValuesNearOne) {
  for (double x = 0.01; x <= 1; x += 0.001) {
    EXPECT_NEAR(map_value(newton_schulz_polynomials(NewtonSchulz::jordan, 5), x), 0.95, 0.27) << x;
    EXPECT_NEAR(map_value(newton_schulz_polynomials(NewtonSchulz::polar_express, 5), x), 1, 0.15) << x;
    EXPECT_NEAR(map_value(newton_schulz_polynomials(NewtonSchulz::polar_express, 12), x), 1, 1e-6) << x;
  }
}

TEST(Muon, ScalesByTheShape) {
  EXPECT_DOUBLE_EQ(update_factor(UpdateScale::match_rms_adamw, 100, 25), 2);
  EXPECT_DOUBLE_EQ(update_factor(UpdateScale::match_rms_adamw, 25, 100), 2);
  EXPECT_DOUBLE_EQ(update_factor(UpdateScale::original, 100, 25), 2);
  EXPECT_DOUBLE_EQ(update_factor(UpdateScale::original, 25, 100), 1);
}

TEST(Muon, CountsTheOperationsOfAStepInTheShorterDimension) {
  EXPECT_DOUBLE_EQ(newton_schulz_flops({2, 5}, 1), 2 * (2 * 2 * 5) * 2 + 2 * 2 * 2 * 2);
  EXPECT_DOUBLE_EQ(newton_schulz_flops({5, 2}, 3), 3 * newton_schulz_flops({2, 5}, 1));
}

}  // namespace
}  // namespace copus
