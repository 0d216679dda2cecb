// A loss for tests whose gradient and noise are known in closed form, and squared norms of its gradients drawn at
// random.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "copus/statistics/gradient_noise.h"

namespace copus {

// l(theta, x) = (theta - x)' H (theta - x) / 2 with x ~ N(mu, X), in the basis in which H and X are diagonal. The
// gradient H (theta - x) of a sample has the mean G = H (theta - mu) and the covariance Sigma = H X H.
class QuadraticLoss {
 public:
  // A group of `copies` equal dimensions. theta differs from mu only in the first of them.
  struct Direction {
    double curvature;      // H
    double data_variance;  // X
    double distance;       // theta - mu
    int copies;

    double gradient() const { return curvature * distance; }
    double variance() const { return curvature * curvature * data_variance; }
  };

  // Makes a spectrum over one decade with an effective dimension tr(Sigma)^2 / tr(Sigma^2) of 4.8 scale, and with the
  // given noise scale.
  QuadraticLoss(int scale, double noise_scale)
      : directions_{{{2, 0.25, 0, 2 * scale}, {1, 0.5, 0, 2 * scale}, {0.5, 0.4, 0, 5 * scale}}} {
    constexpr std::array<double, 3> shares = {0.5, 0.25, 0.25};
    const double squared_gradient = noise().trace / noise_scale;
    for (size_t i = 0; i < directions_.size(); ++i) {
      directions_[i].distance = std::sqrt(shares[i] * squared_gradient) / directions_[i].curvature;
    }
  }

  GradientNoise noise() const {
    GradientNoise noise;
    for (const Direction& direction : directions_) {
      noise.squared_gradient += direction.gradient() * direction.gradient();
      noise.trace += direction.copies * direction.variance();
    }
    return noise;
  }

  double noise_scale() const { return noise().trace / noise().squared_gradient; }

  // Returns G' Sigma G.
  double gradient_covariance_gradient() const {
    double sum = 0;
    for (const Direction& direction : directions_) {
      sum += direction.gradient() * direction.gradient() * direction.variance();
    }
    return sum;
  }

  // Returns tr(Sigma^2).
  double trace_of_squared_covariance() const {
    double sum = 0;
    for (const Direction& direction : directions_) {
      sum += direction.copies * direction.variance() * direction.variance();
    }
    return sum;
  }

  // Draws the gradient of one sample, in every dimension.
  std::vector<double> draw_gradient(std::mt19937_64& random) const {
    std::normal_distribution<double> normal;
    std::vector<double> gradient;
    for (const Direction& direction : directions_) {
      for (int copy = 0; copy < direction.copies; ++copy) {
        const double sample = std::sqrt(direction.data_variance) * normal(random);  // x - mu
        gradient.push_back(direction.curvature * ((copy == 0 ? direction.distance : 0) - sample));
      }
    }
    return gradient;
  }

  // Draws the norms of n gradients of `batch` samples each and of their mean, without drawing every gradient. In each
  // dimension the mean is normal. The squared distances from the mean are independent of it and chi^2-distributed with
  // n - 1 degrees of freedom.
  NormObservation draw(int n, double batch, std::mt19937_64& random) const {
    std::normal_distribution<double> normal;
    const auto chi_squared = [&](double degrees) {
      return degrees == 0 ? 0 : std::chi_squared_distribution<double>(degrees)(random);
    };
    double scatter = 0;
    double squared_mean = 0;
    for (const Direction& direction : directions_) {
      const double variance = direction.variance() / batch;
      const double mean = direction.gradient() + std::sqrt(variance / n) * normal(random);
      squared_mean += mean * mean + variance / n * chi_squared(direction.copies - 1);
      scatter += variance * chi_squared(static_cast<double>(n - 1) * direction.copies);
    }
    return {batch, squared_mean + scatter / n, n * batch, squared_mean};
  }

 private:
  std::array<Direction, 3> directions_;
};

// Returns the variances of the two estimates from n >= 2 gradients of `batch` samples each and their mean, for Gaussian
// samples, B = n batch:
//   Var|G|^2 = 4 G'Sigma G / B + 2 tr(Sigma^2) n / (B^2 (n - 1))      Var tr(Sigma) = 2 tr(Sigma^2) / (n - 1)
inline GradientNoise variance_of_estimate(double n, double batch, double gradient_covariance_gradient,
                                          double trace_of_squared_covariance) {
  const double all = n * batch;
  return {4 * gradient_covariance_gradient / all + 2 * trace_of_squared_covariance * n / (all * all * (n - 1)),
          2 * trace_of_squared_covariance / (n - 1)};
}

}  // namespace copus
