#include "copus/simulate/draws.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

namespace copus {
namespace {

constexpr int many_draws = 200000;
constexpr uint64_t draws_seed = 7;

struct Moments {
  double mean = 0, variance = 0;
};

template <class Draw>
Moments moments_of(Draw draw) {
  double sum = 0, squares = 0;
  for (int i = 0; i < many_draws; ++i) {
    const double value = draw();
    sum += value;
    squares += value * value;
  }
  const double mean = sum / many_draws;
  return {mean, squares / many_draws - mean * mean};
}

TEST(Draws, TheSameSeedAndNameGiveTheSameNumbers) {
  Draws once(draws_seed, "a"), again(draws_seed, "a"), other(draws_seed, "b");
  for (int i = 0; i < 10; ++i) {
    const double value = once.uniform();
    EXPECT_EQ(value, again.uniform());
    EXPECT_NE(value, other.uniform());
    EXPECT_EQ(once.normal(), again.normal());
  }
}

TEST(Draws, HaveTheMomentsOfTheirDistributions) {
  Draws draws(draws_seed, "moments");
  const Moments uniform = moments_of([&] { return draws.uniform(); });
  EXPECT_NEAR(uniform.mean, 0.5, 0.005);
  EXPECT_NEAR(uniform.variance, 1.0 / 12, 0.002);
  const Moments logarithm = moments_of([&] { return std::log(draws.log_uniform(1, std::exp(2.0))); });
  EXPECT_NEAR(logarithm.mean, 1, 0.01);
  EXPECT_NEAR(logarithm.variance, 4.0 / 12, 0.005);
  const Moments normal = moments_of([&] { return draws.normal(); });
  EXPECT_NEAR(normal.mean, 0, 0.01);
  EXPECT_NEAR(normal.variance, 1, 0.02);
  for (const double degrees : {30.0, 1000.0}) {
    const Moments chi_squared = moments_of([&] { return draws.chi_squared(degrees); });
    EXPECT_NEAR(chi_squared.mean / degrees, 1, 0.003);
    EXPECT_NEAR(chi_squared.variance / (2 * degrees), 1, 0.03);
  }
}

TEST(Draws, OneOfReachesAll) {
  Draws draws(draws_seed, "one of");
  std::set<int64_t> drawn;
  for (int i = 0; i < 100; ++i) drawn.insert(draws.one_of(5));
  EXPECT_EQ(drawn, (std::set<int64_t>{0, 1, 2, 3, 4}));
}

}  // namespace
}  // namespace copus
