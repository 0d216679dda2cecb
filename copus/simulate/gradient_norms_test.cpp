#include "copus/simulate/gradient_norms.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "copus/orchestrator/testing/small_run.h"
#include "copus/statistics/noise_scale.h"
#include "copus/statistics/testing/quadratic_loss.h"

namespace copus {
namespace {

constexpr GradientNoise true_noise{.squared_gradient = 2, .trace = 60};  // a noise scale of 30
constexpr uint64_t norms_seed = 11;

Configuration in_batches(int64_t ranks, int64_t global_batch, int64_t micro_batch) {
  return {.strategy = {.data_parallel = ranks}, .global_batch = global_batch, .micro_batch = micro_batch};
}

// Ranks among which gradients are sharded.
Configuration in_shares(int64_t ranks, int64_t global_batch, int64_t micro_batch) {
  Configuration configuration = in_batches(ranks, global_batch, micro_batch);
  configuration.strategy.zero_stage = 2;
  return configuration;
}

// Configurations that differ in what their small batches are: each rank's part of the batch (one micro-batch, or
// several); the first micro-batch; an eighth of the step; every rank's first micro-batch.
const std::vector<Configuration> all_sources = {in_batches(4, 16, 4), in_batches(2, 32, 4), in_batches(1, 16, 4),
                                                in_batches(1, 16, 16), in_shares(4, 32, 2)};

struct EstimateMoments {
  GradientNoise mean, variance;
};

EstimateMoments moments_of_estimates(const Configuration& configuration, const NormSpread& spread) {
  constexpr int count = 100000;
  RunConfig config = small_run();
  config.noise_scale.split_interval = 1;
  Draws draws(norms_seed, "norms");
  double x = 0, y = 0, xx = 0, yy = 0;
  for (int i = 0; i < count; ++i) {
    const GradientNoise seen = estimate(*draw_norms(config, configuration, 1, true_noise, spread, draws));
    x += seen.squared_gradient / count;
    y += seen.trace / count;
    xx += seen.squared_gradient * seen.squared_gradient / count;
    yy += seen.trace * seen.trace / count;
  }
  return {{x, y}, {xx - x * x, yy - y * y}};
}

TEST(GradientNorms, EstimatesFromThemAreUnbiased) {
  for (const Configuration& configuration : all_sources) {
    const EstimateMoments moments = moments_of_estimates(configuration, {.dimensions = 64});
    const double error = 4 / std::sqrt(1e5);
    EXPECT_NEAR(moments.mean.squared_gradient, 2, error * std::sqrt(moments.variance.squared_gradient))
        << to_string(configuration);
    EXPECT_NEAR(moments.mean.trace, 60, error * std::sqrt(moments.variance.trace)) << to_string(configuration);
  }
}

// With Sigma = S / D in each of D directions, G'Sigma G = S |G|^2 / D and tr(Sigma^2) = S^2 / D.
TEST(GradientNorms, SpreadAsGaussianNoiseDoes) {
  constexpr double dimensions = 64;
  const EstimateMoments moments = moments_of_estimates(in_batches(4, 16, 4), {.dimensions = dimensions});
  const GradientNoise expected = variance_of_estimate(4, 4, 60.0 * 2 / dimensions, 60.0 * 60 / dimensions);
  EXPECT_NEAR(moments.variance.squared_gradient / expected.squared_gradient, 1, 0.03);
  EXPECT_NEAR(moments.variance.trace / expected.trace, 1, 0.03);
}

// The first micro-batch is part of the whole batch, so the two squared norms A and C are correlated through it.
TEST(GradientNorms, ThePartIsPartOfTheWhole) {
  constexpr double dimensions = 64, batch = 16, small = 4;
  Draws draws(norms_seed, "part");
  const RunConfig config = small_run();
  double covariance = 0, mean_a = 0, mean_c = 0;
  constexpr int count = 200000;
  for (int i = 0; i < count; ++i) {
    const auto norms = draw_norms(config, in_batches(1, 16, 4), 1, true_noise, {.dimensions = dimensions}, draws);
    covariance += norms->small_squared_norm * norms->large_squared_norm / count;
    mean_a += norms->small_squared_norm / count;
    mean_c += norms->large_squared_norm / count;
  }
  covariance -= mean_a * mean_c;
  // Cov(A, C) = 4 |G|^2 w s + 2 D (w s)^2, where s = S / (b D) is a direction's variance and w = b / B.
  const double shared = small / batch * 60 / (small * dimensions);
  const double expected = 4 * 2 * shared + 2 * dimensions * shared * shared;
  EXPECT_NEAR(covariance / expected, 1, 0.05);
}

TEST(GradientNorms, TheSmallBatchIsARanksShareOrTheFirstMicroBatchOfOneRank) {
  Draws draws(norms_seed, "small batches");
  const auto small_batch = [&](const Configuration& configuration) {
    return draw_norms(small_run(), configuration, 1, true_noise, {}, draws)->small_batch;
  };
  EXPECT_EQ(small_batch(in_batches(4, 16, 4)), 4);
  EXPECT_EQ(small_batch(in_batches(2, 32, 4)), 16);
  EXPECT_EQ(small_batch(in_batches(1, 32, 4)), 4);
  RunConfig config = small_run();
  config.noise_scale.split_interval = 1;
  EXPECT_EQ(draw_norms(config, in_batches(1, 32, 32), 1, true_noise, {}, draws)->small_batch, 4);
}

TEST(GradientNorms, AStepOfOneMicroBatchIsMeasuredEveryFewSteps) {
  RunConfig config = small_run();
  config.noise_scale.split_interval = 8;
  Draws draws(norms_seed, "steps");
  for (int64_t step = 1; step <= 16; ++step) {
    EXPECT_EQ(draw_norms(config, in_batches(1, 16, 16), step, true_noise, {}, draws).has_value(), step % 8 == 0);
    EXPECT_TRUE(draw_norms(config, in_batches(2, 16, 8), step, true_noise, {}, draws).has_value());
  }
  EXPECT_FALSE(draw_norms(config, in_batches(1, 1, 1), 8, true_noise, {}, draws).has_value());
}

TEST(GradientNorms, TheEstimatorOfARunFindsTheNoiseScale) {
  const RunConfig config = small_run();
  for (const Configuration& configuration : {in_batches(4, 16, 4), in_batches(1, 16, 4), in_batches(2, 32, 4)}) {
    int covered = 0;
    constexpr int runs = 200;
    for (uint64_t run = 0; run < runs; ++run) {
      Draws draws(run, "run");
      NoiseAverage average;
      for (int64_t step = 1; step <= 400; ++step) {
        const NormSpread spread{.dimensions = 200, .step_deviation = 0.05};
        average = observe(average, *draw_norms(config, configuration, step, true_noise, spread, draws), {});
      }
      const NoiseScale seen = *noise_scale(average);
      covered += seen.high && seen.low <= 30 && 30 <= *seen.high;
    }
    EXPECT_GE(covered, runs * 0.89) << to_string(configuration) << ": the interval is one of 95 %";
  }
}

// The values of phi / B when the estimator first gives one, in many runs, sorted.
std::vector<double> first_values(const Configuration& configuration, const GradientNoise& truth) {
  constexpr int runs = 100, most_steps = 2000;
  const RunConfig config = small_run();
  std::vector<double> values;
  for (uint64_t run = 0; run < runs; ++run) {
    Draws draws(run, "first values");
    NoiseAverage average;
    for (int64_t step = 1; step <= most_steps; ++step) {
      average = observe(average, *draw_norms(config, configuration, step, truth, {}, draws), {});
      const std::optional<NoiseScale> seen = noise_scale(average);
      if (!seen || !seen->value) continue;
      values.push_back(*seen->value / static_cast<double>(configuration.global_batch));
      break;
    }
  }
  std::sort(values.begin(), values.end());
  return values;
}

// The estimator first gives a value when |G|^2 happens to be large, so the first values are too low. Decisions use them
// anyway: they are too low only if phi is far above the batch, and then even they ask for a larger batch.
TEST(GradientNorms, TheFirstValueIsLowOnlyFarAboveTheBatch) {
  const std::vector<double> near = first_values(in_batches(1, 64, 4), {.squared_gradient = 1, .trace = 8 * 64});
  ASSERT_EQ(near.size(), 100);
  EXPECT_NEAR(near[50] / 8, 1, 0.15);
  const std::vector<double> far = first_values(in_batches(1, 4, 2), {.squared_gradient = 1, .trace = 128 * 4});
  ASSERT_GT(far.size(), 70);
  EXPECT_LT(far[far.size() / 2], 0.5 * 128) << "the median of the first values";
  EXPECT_GT(far[far.size() / 20], 4) << "one in twenty is lower";
}

}  // namespace
}  // namespace copus
