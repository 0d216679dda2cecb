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

// Fails if the mean is more than four standard errors from the truth, or if the standard error is too large to exclude
// a bias of 1 %.
void expect_unbiased(const Moments& moments, double truth) {
  EXPECT_LT(moments.standard_error(), 0.0025 * truth) << "too few repetitions";
  EXPECT_NEAR(moments.mean(), truth, 4 * moments.standard_error());
}

TEST(GradientNoise, IsReadOffALine) {
  // E|g|^2 = |G|^2 + tr(Sigma)/k, with |G|^2 = 3 and tr(Sigma) = 40.
  const GradientNoise expected{3, 40};
  EXPECT_EQ(estimate({4, 13, 8, 8}), expected);
  EXPECT_EQ(estimate({1, 43, 40, 4}), expected);
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
  const auto noise = estimate({batch, mean_squared_norm(gradients), 3 * batch, squared_norm(mean)});
  EXPECT_NEAR(noise.squared_gradient, (product(0, 1) + product(0, 2) + product(1, 2)) / 3, 1e-12);
  EXPECT_NEAR(noise.trace, batch * variance, 1e-12);
}

TEST(GradientNoise, TheBatchesMustDiffer) {
  EXPECT_THROW(estimate({4, 1, 4, 1}), InternalError);
  EXPECT_THROW(estimate({8, 1, 4, 1}), InternalError);
  EXPECT_THROW(estimate({0, 1, 4, 1}), InternalError);
}

struct Case {
  int scale;        // scale of the effective dimension
  int repetitions;  // enough to reveal a bias
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
        const GradientNoise noise = estimate(loss.draw(n, batch, random));
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

}  // namespace
}  // namespace copus
