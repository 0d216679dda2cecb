#include "copus/statistics/gradient_noise.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <numeric>
#include <random>
#include <vector>

#include "copus/base/error.h"
#include "copus/statistics/testing/quadratic_loss.h"

namespace copus {
namespace {

using Vector = std::vector<double>;

double squared_norm(const Vector& vector) {
  return std::inner_product(vector.begin(), vector.end(), vector.begin(), 0.0);
}

Vector mean_of(const std::vector<Vector>& vectors, size_t first, size_t count) {
  Vector mean(vectors[first].size());
  for (size_t i = first; i < first + count; ++i) {
    for (size_t j = 0; j < mean.size(); ++j) mean[j] += vectors[i][j] / static_cast<double>(count);
  }
  return mean;
}

double mean_squared_norm(const std::vector<Vector>& vectors) {
  double sum = 0;
  for (const Vector& vector : vectors) sum += squared_norm(vector);
  return sum / static_cast<double>(vectors.size());
}

// The mean and variance of the values that are added.
class Moments {
 public:
  void add(double value) {
    ++count_;
    const double change = value - mean_;
    mean_ += change / count_;
    squares_ += change * (value - mean_);
  }
  double mean() const { return mean_; }
  double variance() const { return squares_ / (count_ - 1); }
  double standard_error() const { return std::sqrt(variance() / count_); }

 private:
  double count_ = 0, mean_ = 0, squares_ = 0;
};

// Fails where the mean is more than four standard errors from the truth, or where these are too wide to exclude a bias
// of 1 %.
void expect_unbiased(const Moments& moments, double truth) {
  EXPECT_LT(moments.standard_error(), 0.0025 * truth) << "too few repetitions";
  EXPECT_NEAR(moments.mean(), truth, 4 * moments.standard_error());
}

TEST(GradientNoise, IsReadOffALine) {
  // E|g|^2 = |G|^2 + tr(Sigma)/k, with |G|^2 = 3 and tr(Sigma) = 40.
  const GradientNoise expected{3, 40};
  EXPECT_EQ(estimate({4, 13, 8, 8}), expected);
  EXPECT_EQ(estimate({1, 43, 40, 4}), expected);
  EXPECT_EQ(estimate_from_samples(2, 4, 13, 8), expected);
}

TEST(GradientNoise, IsThePairwiseProductsAndTheSampleVariance) {
  const std::vector<Vector> gradients = {{1, 2}, {3, -1}, {0.5, 4}};
  const auto product = [&](int i, int j) {
    return std::inner_product(gradients[i].begin(), gradients[i].end(), gradients[j].begin(), 0.0);
  };
  const Vector mean = mean_of(gradients, 0, 3);
  double variance = 0;
  for (const Vector& gradient : gradients) {
    for (size_t j = 0; j < mean.size(); ++j) variance += (gradient[j] - mean[j]) * (gradient[j] - mean[j]) / 2;
  }
  const double batch = 5;
  const auto noise = estimate_from_samples(3, batch, mean_squared_norm(gradients), squared_norm(mean));
  EXPECT_NEAR(noise.squared_gradient, (product(0, 1) + product(0, 2) + product(1, 2)) / 3, 1e-12);
  EXPECT_NEAR(noise.trace, batch * variance, 1e-12);
}

TEST(GradientNoise, TheBatchesMustDiffer) {
  EXPECT_THROW(estimate({4, 1, 4, 1}), InternalError);
  EXPECT_THROW(estimate({8, 1, 4, 1}), InternalError);
  EXPECT_THROW(estimate({0, 1, 4, 1}), InternalError);
  EXPECT_THROW(estimate_from_samples(1, 4, 1, 1), InternalError);
  EXPECT_THROW(variance_of_estimate(1, 4, 1, 1), InternalError);
}

struct Case {
  int scale;        // scale of the effective dimension
  int repetitions;  // enough of them for a bias to show
};

class OnQuadratics : public testing::TestWithParam<Case> {};

// The noise scale is half of the batch, so that |G|^2 and tr(Sigma) both matter.
TEST_P(OnQuadratics, EstimatesAreUnbiasedAndVaryAsFormulasSay) {
  const auto [scale, repetitions] = GetParam();
  for (const int batch : {1, 4, 16}) {
    for (const int n : {2, 8, 64}) {
      const int seed = scale * 10000 + batch * 100 + n;
      SCOPED_TRACE(testing::Message() << "b " << batch << ", n " << n << ", seed " << seed);
      std::mt19937_64 random(seed);
      const QuadraticLoss loss(scale, n * batch / 2.0);
      Moments squared_gradient;
      Moments trace;
      for (int repetition = 0; repetition < repetitions; ++repetition) {
        const NormObservation norms = loss.draw(n, batch, random);
        const auto noise = estimate_from_samples(n, batch, norms.small_squared_norm, norms.large_squared_norm);
        squared_gradient.add(noise.squared_gradient);
        trace.add(noise.trace);
      }
      expect_unbiased(squared_gradient, loss.noise().squared_gradient);
      expect_unbiased(trace, loss.noise().trace);
      const auto variance =
          variance_of_estimate(n, batch, loss.gradient_covariance_gradient(), loss.trace_of_squared_covariance());
      EXPECT_NEAR(squared_gradient.variance(), variance.squared_gradient, 0.05 * variance.squared_gradient);
      EXPECT_NEAR(trace.variance(), variance.trace, 0.05 * variance.trace);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(EffectiveDimensions, OnQuadratics,
                         testing::Values(Case{1, 100000}, Case{10, 20000}, Case{100, 20000}));

// Every sample's gradient is drawn and summed here, as training does.
TEST(OnQuadratics, TheSmallBatchMayBePartOfTheLargeOne) {
  std::mt19937_64 random(5);
  const QuadraticLoss loss(2, 6);
  Moments squared_gradient;
  Moments trace;
  for (int repetition = 0; repetition < 100000; ++repetition) {
    std::vector<Vector> gradients(12);
    for (Vector& gradient : gradients) gradient = loss.draw_gradient(random);
    const auto noise =
        estimate({2, squared_norm(mean_of(gradients, 0, 2)), 12, squared_norm(mean_of(gradients, 0, 12))});
    squared_gradient.add(noise.squared_gradient);
    trace.add(noise.trace);
  }
  expect_unbiased(squared_gradient, loss.noise().squared_gradient);
  expect_unbiased(trace, loss.noise().trace);
}

// Draws norms of d ranks with m micro-batches of two samples each, whose gradients are mean + spread of the rank +
// noise.
NestedNorms draw_nested(int ranks, int micro_batches, double rank_spread, std::mt19937_64& random) {
  std::normal_distribution<double> normal;
  constexpr size_t dimensions = 200;
  std::vector<Vector> gradients;
  std::vector<Vector> rank_means;
  for (int rank = 0; rank < ranks; ++rank) {
    Vector shift(dimensions);
    for (double& value : shift) value = rank_spread * normal(random);
    for (int micro_batch = 0; micro_batch < micro_batches; ++micro_batch) {
      Vector gradient = shift;
      for (double& value : gradient) value += 0.1 + normal(random) / std::numbers::sqrt2;
      gradients.push_back(gradient);
    }
    rank_means.push_back(mean_of(gradients, gradients.size() - micro_batches, micro_batches));
  }
  return {static_cast<double>(ranks),
          static_cast<double>(micro_batches),
          2,
          mean_squared_norm(gradients),
          mean_squared_norm(rank_means),
          squared_norm(mean_of(gradients, 0, gradients.size()))};
}

TEST(PooledNoise, WeighsByDegreesOfFreedomAndEqualsTheEstimateOfAllMicroBatches) {
  std::mt19937_64 random(1);
  const NestedNorms norms = draw_nested(3, 4, 0.5, random);
  const PooledNoise noise = pool(norms);
  const auto expected = estimate_from_samples(12, 2, norms.micro_batch_squared_norm, norms.squared_norm);
  EXPECT_DOUBLE_EQ(noise.pooled.trace, expected.trace);
  EXPECT_DOUBLE_EQ(noise.pooled.squared_gradient, expected.squared_gradient);
  EXPECT_NEAR(noise.pooled.trace, (3 * 3 * noise.within_trace + 2 * noise.between_trace) / 11,
              1e-12 * noise.pooled.trace);
  // The squared norm of the mean of all 24 samples is |G|^2 + tr(Sigma)/B.
  EXPECT_NEAR(noise.pooled.squared_gradient + noise.pooled.trace / 24, norms.squared_norm, 1e-12);
}

TEST(PooledNoise, WithinAndBetweenRanksAgreeOnlyForRandomOrder) {
  std::mt19937_64 random(2);
  Moments within;
  Moments between;
  Moments ordered_within;
  Moments ordered_between;
  for (int repetition = 0; repetition < 200; ++repetition) {
    const PooledNoise noise = pool(draw_nested(4, 4, 0, random));
    within.add(noise.within_trace);
    between.add(noise.between_trace);
    const PooledNoise ordered = pool(draw_nested(4, 4, 0.5, random));
    ordered_within.add(ordered.within_trace);
    ordered_between.add(ordered.between_trace);
  }
  // A sample has 200 dimensions of variance 1; data that differs by rank adds the spread's variance 0.25, times the 8
  // samples of a rank.
  EXPECT_NEAR(within.mean(), 200, 4 * within.standard_error());
  EXPECT_NEAR(between.mean(), 200, 4 * between.standard_error());
  EXPECT_NEAR(ordered_within.mean(), 200, 4 * ordered_within.standard_error());
  EXPECT_NEAR(ordered_between.mean(), 200 * (1 + 8 * 0.25), 4 * ordered_between.standard_error());
}

TEST(PooledNoise, WhatWasNotSeenIsNotANumber) {
  std::mt19937_64 random(3);
  const NestedNorms one_rank = draw_nested(1, 4, 0, random);
  EXPECT_TRUE(std::isnan(pool(one_rank).between_trace));
  EXPECT_DOUBLE_EQ(pool(one_rank).within_trace, pool(one_rank).pooled.trace);
  const NestedNorms one_micro_batch = draw_nested(4, 1, 0, random);
  EXPECT_TRUE(std::isnan(pool(one_micro_batch).within_trace));
  EXPECT_DOUBLE_EQ(pool(one_micro_batch).between_trace, pool(one_micro_batch).pooled.trace);
  EXPECT_THROW(pool(draw_nested(1, 1, 0, random)), InternalError);
}

}  // namespace
}  // namespace copus
