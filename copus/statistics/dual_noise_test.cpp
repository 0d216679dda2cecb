#include "copus/statistics/dual_noise.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace copus {
namespace {

// Gradients of 4,000 elements with normal noise, in the norm of sign descent. The true noise scale is
// (sum of E|noise_i| / sum of |G_i|)^2.
class SignDescent {
 public:
  explicit SignDescent(double spread, int elements = 4000) {
    std::normal_distribution<double> normal;
    for (int i = 0; i < elements; ++i) {
      gradient_.push_back(0.3 * normal(random_));
      deviation_.push_back(std::exp(spread * normal(random_)));
    }
  }

  double truth() const {
    double noise = 0, signal = 0;
    for (size_t i = 0; i < gradient_.size(); ++i) {
      noise += deviation_[i] * std::sqrt(2 / M_PI);
      signal += std::abs(gradient_[i]);
    }
    return std::pow(noise / signal, 2);
  }

  // The estimate from so many steps, each of which compares `batch` samples with `ratio` times as many others.
  std::optional<DualNoiseScale> estimate(double batch, double ratio, int steps) {
    std::normal_distribution<double> normal;
    DualNoiseAverage sums;
    for (int step = 0; step < steps; ++step) {
      double noise = 0, signal = 0;
      for (size_t i = 0; i < gradient_.size(); ++i) {
        const double g = gradient_[i] + deviation_[i] / std::sqrt(batch) * normal(random_);
        const double m = gradient_[i] + deviation_[i] / std::sqrt(batch * ratio) * normal(random_);
        noise += std::abs(g - m);
        signal += g * (m > 0 ? 1 : -1);
      }
      sums = observe(sums, {noise, signal, batch, 1 / ratio});
    }
    return dual_noise_scale(sums);
  }

 private:
  std::mt19937_64 random_{11};
  std::vector<double> gradient_, deviation_;
};

// Gradients are mostly signal in the largest batch, and mostly noise in the smallest.
TEST(DualNoise, IsTheSameForEveryBatchWhereNoiseAndSignalAreAlike) {
  SignDescent descent(/*spread=*/0);
  for (const double batch : {0.2, 1.0, 20.0, 1000.0}) {
    for (const double ratio : {1.0, 7.0}) {
      const auto scale = descent.estimate(batch, ratio, 100);
      ASSERT_TRUE(scale && scale->value) << batch << ", " << ratio;
      EXPECT_NEAR(*scale->value / descent.truth(), 1, 0.1) << batch << ", " << ratio;
      EXPECT_LT(scale->low, *scale->value);
      EXPECT_GT(scale->high, *scale->value);
    }
  }
}

// Deviations of the noise that differ by a factor of 2.7 between elements.
TEST(DualNoise, IsCloseWhereSomeElementsAreNoisierThanOthers) {
  SignDescent descent(/*spread=*/0.5);
  for (const double batch : {0.2, 1.0, 20.0, 1000.0}) {
    const auto scale = descent.estimate(batch, 3, 100);
    ASSERT_TRUE(scale && scale->value) << batch;
    EXPECT_NEAR(std::log(*scale->value / descent.truth()), 0, std::log(1.5)) << batch;
  }
}

TEST(DualNoise, AnInsignificantSignalGivesALowerEndAlone) {
  DualNoiseAverage sums;
  EXPECT_FALSE(dual_noise_scale(sums));
  for (int i = 0; i < 10; ++i) sums = observe(sums, {.noise = 1, .signal = i % 2 == 0 ? 1.0 : -1.0, .batch = 4});
  const auto scale = dual_noise_scale(sums);
  ASSERT_TRUE(scale);
  EXPECT_FALSE(scale->value);
  EXPECT_FALSE(scale->high);
  EXPECT_GT(scale->low, 1);
  EXPECT_EQ(observe(sums, {.noise = NAN, .signal = 1, .batch = 4}), sums);
}

// 400 runs of 40 observations: the interval should contain the truth in about 95 %.
TEST(DualNoise, TheIntervalContainsTheTruthAsOftenAsItSays) {
  std::mt19937_64 random(5);
  std::normal_distribution<double> normal;
  int covered = 0;
  for (int run = 0; run < 400; ++run) {
    DualNoiseAverage sums;
    for (int i = 0; i < 40; ++i) {
      const double common = 0.1 * normal(random);
      sums = observe(
          sums, {.noise = 3 + common + 0.1 * normal(random), .signal = 1 + common + 0.2 * normal(random), .batch = 1});
    }
    const auto scale = dual_noise_scale(sums);
    covered += scale->low <= 9 && 9 <= *scale->high ? 1 : 0;
  }
  EXPECT_GT(covered, 0.90 * 400);
  EXPECT_LT(covered, 0.985 * 400);
}

// The same with gradients that are mostly noise. The truth is what a long run says, since these intervals are of chance
// alone.
TEST(DualNoise, TheIntervalContainsTheTruthWhereGradientsAreMostlyNoise) {
  SignDescent descent(/*spread=*/0, /*elements=*/100);
  double sum = 0;
  for (int run = 0; run < 60; ++run) sum += std::log(*descent.estimate(4, 1, 400)->value);
  const double truth = std::exp(sum / 60);
  int covered = 0, known = 0;
  for (int run = 0; run < 200; ++run) {
    const auto scale = descent.estimate(4, 1, 40);
    if (!scale || !scale->value) continue;
    ++known;
    covered += scale->low <= truth && truth <= *scale->high ? 1 : 0;
  }
  EXPECT_GT(known, 180);
  EXPECT_GT(covered, 0.85 * known);
}

}  // namespace
}  // namespace copus
