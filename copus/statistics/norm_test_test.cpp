#include "copus/statistics/norm_test.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "copus/base/error.h"
#include "copus/statistics/testing/infinity.h"

namespace copus {
namespace {

constexpr int workers = 6;
constexpr int dimensions = 40;

using Vector = std::vector<double>;

std::vector<Vector> draw_worker_gradients() {
  std::mt19937_64 random(9);
  std::normal_distribution<double> normal;
  std::vector<Vector> gradients(workers, Vector(dimensions));
  for (Vector& gradient : gradients) {
    for (double& value : gradient) value = 0.5 + normal(random);
  }
  return gradients;
}

Vector mean_of(const std::vector<Vector>& gradients) {
  Vector mean(dimensions);
  for (const Vector& gradient : gradients) {
    for (int i = 0; i < dimensions; ++i) mean[i] += gradient[i] / workers;
  }
  return mean;
}

// Returns the norms over the coordinates [first, last) only.
WorkerNorms norms_of(const std::vector<Vector>& gradients, int first, int last) {
  const auto squared_norm = [&](const Vector& vector) {
    return std::inner_product(vector.begin() + first, vector.begin() + last, vector.begin() + first, 0.0);
  };
  WorkerNorms norms{workers, 96, 0, squared_norm(mean_of(gradients))};
  for (const Vector& gradient : gradients) norms.mean_squared_norm += squared_norm(gradient) / workers;
  return norms;
}

TEST(NormTest, ComparesTheVarianceOfTheMeanWithItsNorm) {
  const auto gradients = draw_worker_gradients();
  const Vector mean = mean_of(gradients);
  // The sum over coordinates of the variance of the workers' mean, computed from their sample variance.
  double variance = 0;
  double squared_norm = 0;
  for (int i = 0; i < dimensions; ++i) {
    for (const Vector& gradient : gradients) variance += std::pow(gradient[i] - mean[i], 2) / (workers - 1) / workers;
    squared_norm += mean[i] * mean[i];
  }
  const double relative_error = std::sqrt(variance / squared_norm);
  const WorkerNorms norms = norms_of(gradients, 0, dimensions);

  EXPECT_TRUE(norm_test(norms, 1.001 * relative_error, 1e9).passed);
  EXPECT_EQ(norm_test(norms, 1.001 * relative_error, 1e9).batch, 96);
  const double eta = relative_error / 3;
  const NormTestResult result = norm_test(norms, eta, 1e9);
  EXPECT_FALSE(result.passed);
  EXPECT_EQ(result.batch, std::ceil(96 * variance / (eta * eta * squared_norm)));
  EXPECT_NEAR(result.batch, 9 * 96, 1);
}

TEST(NormTest, ShardsAddUp) {
  const auto gradients = draw_worker_gradients();
  const WorkerNorms whole = norms_of(gradients, 0, dimensions);
  WorkerNorms sum{workers, 96, 0, 0};
  for (const auto& [first, last] : {std::pair{0, 7}, std::pair{7, 31}, std::pair{31, dimensions}}) {
    const WorkerNorms shard = norms_of(gradients, first, last);
    sum.mean_squared_norm += shard.mean_squared_norm;
    sum.squared_norm += shard.squared_norm;
  }
  for (const double eta : {0.05, 0.2, 0.4, 0.8}) {
    EXPECT_EQ(norm_test(sum, eta, 1e9).passed, norm_test(whole, eta, 1e9).passed) << eta;
    EXPECT_EQ(norm_test(sum, eta, 1e9).batch, norm_test(whole, eta, 1e9).batch) << eta;
  }
}

// (A - C)/(J - 1) = 2 against eta^2 C = 0.75 asks for 2.67 times the batch.
TEST(NormTest, TheBatchIsWholeCappedAndNeverLess) {
  const WorkerNorms norms{4, 32, 9, 3};
  EXPECT_EQ(norm_test(norms, 0.5, 1000).batch, 86);
  EXPECT_EQ(norm_test(norms, 0.5, 64).batch, 64);
  EXPECT_EQ(norm_test(norms, 0.5, 16).batch, 32);
  EXPECT_EQ(norm_test({4, 32, 3, 3}, 0.5, 1000).batch, 32);
  EXPECT_TRUE(norm_test({4, 32, 3 + 3 * 0.75, 3}, 0.5, 1000).passed);  // equality passes
  EXPECT_FALSE(norm_test({4, 32, 3.01 + 3 * 0.75, 3}, 0.5, 1000).passed);
}

TEST(NormTest, HasItsLimits) {
  EXPECT_EQ(norm_test({4, 32, 9, 0}, 0.5, 1000).batch, 1000);  // pure noise
  EXPECT_TRUE(norm_test({4, 32, 0, 0}, 0.5, 1000).passed);
  for (const double bad : {infinity, std::nan("")}) {
    EXPECT_EQ(norm_test({4, 32, bad, 3}, 0.5, 1000).batch, 32);
    EXPECT_EQ(norm_test({4, 32, 9, bad}, 0.5, 1000).batch, 32);
    EXPECT_EQ(norm_test({4, 32, bad, bad}, 0.5, 1000).batch, 32);
  }
  EXPECT_THROW(norm_test({1, 32, 9, 3}, 0.5, 1000), InternalError);
  EXPECT_THROW(norm_test({4, 32, 9, 3}, 0, 1000), InternalError);
}

}  // namespace
}  // namespace copus
