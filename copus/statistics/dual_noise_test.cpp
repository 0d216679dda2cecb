#include "copus/statistics/dual_noise.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace copus {
namespace {

TEST(DualNoise, TheVarianceOfAnAverageIsTheSumOfItsSquaredWeights) {
  for (const double decay : {0.5, 0.9, 0.95}) {
    for (const int64_t count : {1, 2, 7, 200}) {
      double sum = 0, squares = 0;
      for (int64_t i = 0; i < count; ++i) {
        const double weight = std::pow(decay, i);
        sum += weight;
        squares += weight * weight;
      }
      EXPECT_NEAR(variance_of_average(decay, count), squares / (sum * sum), 1e-12) << decay << ", " << count;
    }
  }
}

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

  // The estimate after a run of batches of this size, of which every `interval`th is observed.
  std::optional<DualNoiseScale> estimate(double batch, int steps, int interval) {
    constexpr double decay = 0.95;
    std::vector<double> average(gradient_.size(), 0);
    std::normal_distribution<double> normal;
    DualNoiseAverage sums;
    for (int step = 1; step <= steps; ++step) {
      double noise = 0, signal = 0;
      const double correction = 1 / (1 - std::pow(decay, step - 1));
      for (size_t i = 0; i < gradient_.size(); ++i) {
        const double g = gradient_[i] + deviation_[i] / std::sqrt(batch) * normal(random_);
        noise += std::abs(g - average[i] * correction);
        signal += g * (average[i] > 0 ? 1 : -1);
        average[i] = decay * average[i] + (1 - decay) * g;
      }
      if (step < 20 || step % interval != 0) continue;
      sums = observe(sums, {noise, signal, batch, variance_of_average(decay, step - 1)});
    }
    return dual_noise_scale(sums);
  }

 private:
  std::mt19937_64 random_{11};
  std::vector<double> gradient_, deviation_;
};

// The average m is mostly signal in the largest batch, and mostly noise in the smallest.
TEST(DualNoise, IsTheSameForEveryBatchWhereNoiseAndSignalAreAlike) {
  SignDescent descent(/*spread=*/0);
  for (const double batch : {0.1, 1.0, 20.0, 1000.0}) {
    const auto scale = descent.estimate(batch, 400, 4);
    ASSERT_TRUE(scale && scale->value) << batch;
    EXPECT_NEAR(*scale->value / descent.truth(), 1, 0.1) << batch;
    EXPECT_LT(scale->low, *scale->value);
    EXPECT_GT(scale->high, *scale->value);
  }
}

// Deviations of the noise that differ by a factor of 2.7 between elements.
TEST(DualNoise, IsCloseWhereSomeElementsAreNoisierThanOthers) {
  SignDescent descent(/*spread=*/0.5);
  for (const double batch : {0.1, 1.0, 20.0, 1000.0}) {
    const auto scale = descent.estimate(batch, 400, 4);
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

// The same with gradients, in a batch in which the average is mostly noise. The truth is what a long run says, since
// these intervals are of chance alone. Observations are 60 steps apart, so that they share little of the average.
TEST(DualNoise, TheIntervalContainsTheTruthWhereTheAverageIsMostlyNoise) {
  SignDescent descent(/*spread=*/0, /*elements=*/100);
  const double truth = *descent.estimate(1, 60000, 60)->value;
  int covered = 0, known = 0;
  for (int run = 0; run < 60; ++run) {
    const auto scale = descent.estimate(1, 1800, 60);
    if (!scale || !scale->value) continue;
    ++known;
    covered += scale->low <= truth && truth <= *scale->high ? 1 : 0;
  }
  EXPECT_GT(known, 50);
  EXPECT_GT(covered, 0.85 * known);
}

}  // namespace
}  // namespace copus
