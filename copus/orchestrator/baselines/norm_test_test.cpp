#include "copus/orchestrator/baselines/norm_test.h"

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

constexpr int num_workers = 6;
constexpr int dimensions = 40;

using Vector = std::vector<double>;

std::vector<Vector> draw_worker_gradients() {
  std::mt19937_64 random(9);
  std::normal_distribution<double> normal;
  std::vector<Vector> gradients(num_workers, Vector(dimensions));
  for (Vector& gradient : gradients) {
    for (double& value : gradient) value = 0.5 + normal(random);
  }
  return gradients;
}

Vector mean_of(const std::vector<Vector>& gradients) {
  Vector mean(dimensions);
  for (const Vector& gradient : gradients) {
    for (int i = 0; i < dimensions; ++i) mean[i] += gradient[i] / static_cast<double>(gradients.size());
  }
  return mean;
}

double square_of(const Vector& vector) { return std::inner_product(vector.begin(), vector.end(), vector.begin(), 0.0); }

// The sample variance of gradients, summed over coordinates.
double sample_variance(const std::vector<Vector>& gradients) {
  const Vector mean = mean_of(gradients);
  double variance = 0;
  for (const Vector& gradient : gradients) {
    for (int i = 0; i < dimensions; ++i) {
      variance += std::pow(gradient[i] - mean[i], 2) / (static_cast<double>(gradients.size()) - 1);
    }
  }
  return variance;
}

// Returns the norms over the coordinates [first, last) only.
NormObservation norms_of(const std::vector<Vector>& gradients, int first, int last) {
  const auto cut = [&](const Vector& vector) { return Vector(vector.begin() + first, vector.begin() + last); };
  NormObservation norms{16, 0, 96, square_of(cut(mean_of(gradients)))};
  for (const Vector& gradient : gradients) norms.small_squared_norm += square_of(cut(gradient)) / num_workers;
  return norms;
}

TEST(NormTest, ComparesTheVarianceOfTheMeanWithItsNorm) {
  const auto gradients = draw_worker_gradients();
  const double variance = sample_variance(gradients) / num_workers;  // of the mean of the workers' gradients
  const double squared_length = square_of(mean_of(gradients));
  const double relative_error = std::sqrt(variance / squared_length);
  const NormObservation norms = norms_of(gradients, 0, dimensions);

  EXPECT_NEAR(variance_of_batch_gradient(norms), variance, 1e-12 * variance);
  EXPECT_TRUE(norm_test(norms, 1.001 * relative_error, 1e9).passed);
  EXPECT_EQ(norm_test(norms, 1.001 * relative_error, 1e9).batch, 96);
  const double eta = relative_error / 3;
  const NormTestResult result = norm_test(norms, eta, 1e9);
  EXPECT_FALSE(result.passed);
  EXPECT_EQ(result.batch, std::ceil(96 * variance / (eta * eta * squared_length)));
  EXPECT_NEAR(result.batch, 9 * 96, 1);
}

TEST(NormTest, ShardsAddUp) {
  const auto gradients = draw_worker_gradients();
  const NormObservation whole = norms_of(gradients, 0, dimensions);
  NormObservation sum{16, 0, 96, 0};
  for (const auto& [first, last] : {std::pair{0, 7}, std::pair{7, 31}, std::pair{31, dimensions}}) {
    const NormObservation shard = norms_of(gradients, first, last);
    sum.small_squared_norm += shard.small_squared_norm;
    sum.large_squared_norm += shard.large_squared_norm;
  }
  for (const double eta : {0.05, 0.2, 0.4, 0.8}) {
    EXPECT_EQ(norm_test(sum, eta, 1e9).passed, norm_test(whole, eta, 1e9).passed) << eta;
    EXPECT_EQ(norm_test(sum, eta, 1e9).batch, norm_test(whole, eta, 1e9).batch) << eta;
  }
}

// Six workers with four micro-batches each, of which only the first is measured, as when gradients are reduced after
// every micro-batch. The noise of a coordinate has variance 1 in a micro-batch's gradient, so 1/24 in the batch's.
TEST(NormTest, APartOfEachWorkersShareTellsTheSameVariance) {
  constexpr int micro_batches = 4, steps = 4000;
  std::mt19937_64 random(10);
  std::normal_distribution<double> normal;
  double by_shares = 0, by_parts = 0, by_workers = 0;
  for (int step = 0; step < steps; ++step) {
    std::vector<Vector> firsts, shares;
    for (int worker = 0; worker < num_workers; ++worker) {
      std::vector<Vector> gradients(micro_batches, Vector(dimensions));
      for (Vector& gradient : gradients) {
        for (double& value : gradient) value = 0.5 + normal(random);
      }
      firsts.push_back(gradients.front());
      shares.push_back(mean_of(gradients));
    }
    NormObservation norms{4, 0, 96, square_of(mean_of(shares))};
    for (const Vector& first : firsts) norms.small_squared_norm += square_of(first) / num_workers;
    by_parts += variance_of_batch_gradient(norms) / steps;
    by_shares += variance_of_batch_gradient(norms_of(shares, 0, dimensions)) / steps;
    by_workers += sample_variance(shares) / num_workers / steps;
  }
  constexpr double variance = dimensions / 24.0;
  EXPECT_NEAR(by_shares, by_workers, 1e-12 * variance);
  // Standard errors of the means: 0.16 % of the variance by shares, 0.18 % by parts.
  EXPECT_NEAR(by_shares, variance, 0.01 * variance);
  EXPECT_NEAR(by_parts, variance, 0.01 * variance);
}

// B/b - 1 = 3: (A - C)/3 = 2 against eta^2 C = 0.75 asks for 2.67 times the batch.
TEST(NormTest, TheBatchIsWholeCappedAndNeverLess) {
  const NormObservation norms{8, 9, 32, 3};
  EXPECT_EQ(norm_test(norms, 0.5, 1000).batch, 86);
  EXPECT_EQ(norm_test(norms, 0.5, 64).batch, 64);
  EXPECT_EQ(norm_test(norms, 0.5, 16).batch, 32);
  EXPECT_EQ(norm_test({8, 3, 32, 3}, 0.5, 1000).batch, 32);
  EXPECT_TRUE(norm_test({8, 3 + 3 * 0.75, 32, 3}, 0.5, 1000).passed);  // equality passes
  EXPECT_FALSE(norm_test({8, 3.01 + 3 * 0.75, 32, 3}, 0.5, 1000).passed);
}

TEST(NormTest, HasItsLimits) {
  EXPECT_EQ(norm_test({8, 9, 32, 0}, 0.5, 1000).batch, 1000);  // pure noise
  EXPECT_TRUE(norm_test({8, 0, 32, 0}, 0.5, 1000).passed);
  for (const double bad : {infinity, std::nan("")}) {
    EXPECT_EQ(norm_test({8, bad, 32, 3}, 0.5, 1000).batch, 32);
    EXPECT_EQ(norm_test({8, 9, 32, bad}, 0.5, 1000).batch, 32);
    EXPECT_EQ(norm_test({8, bad, 32, bad}, 0.5, 1000).batch, 32);
  }
  EXPECT_TRUE(norm_test({8, 2, 32, 3}, 0.5, 1000).passed);  // an estimate below zero
  EXPECT_THROW(norm_test({32, 9, 32, 3}, 0.5, 1000), InternalError);
  EXPECT_THROW(norm_test({8, 9, 32, 3}, 0, 1000), InternalError);
}

}  // namespace
}  // namespace copus
