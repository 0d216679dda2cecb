#include "copus/statistics/student_t.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "copus/base/error.h"

namespace copus {

namespace {

// From this many degrees of freedom on, Student's distribution equals the normal one to a relative error of 1e-6.
constexpr double almost_normal = 1e7;

// Newton's method from the left, where the normal distribution is concave, so that no step overshoots.
double normal_quantile(double probability) {
  double z = 0;
  for (int iteration = 0; iteration < 100; ++iteration) {
    const double below = 0.5 * std::erfc(-z / std::numbers::sqrt2);
    const double change = (probability - below) * std::sqrt(2 * std::numbers::pi) * std::exp(z * z / 2);
    z += change;
    if (change <= 1e-9 * z) break;
  }
  return z;
}

// The logarithm of the Gamma function. std::lgamma, and with it std::beta, writes the sign to a global variable, which
// is a data race between threads.
double log_gamma(double x) {
  int sign = 0;
  return ::lgamma_r(x, &sign);
}

double beta(double x, double y) { return std::exp(log_gamma(x) + log_gamma(y) - log_gamma(x + y)); }

}  // namespace

// Substitutes t = sqrt(nu) tan(x): the density of x is proportional to cos(x)^(nu - 1).
double student_t_quantile(double probability, double degrees_of_freedom) {
  COPUS_CHECK(0.5 < probability && probability < 1 && degrees_of_freedom >= 1, probability, ", ", degrees_of_freedom);
  const double nu = std::min(degrees_of_freedom, almost_normal);
  const auto density = [&](double x) { return std::pow(std::cos(x), nu - 1); };
  // Integrates the density from 0 to x by Simpson's rule. The density is smooth there, because x stays below pi/2.
  const auto integral = [&](double x) {
    constexpr int panels = 64;
    const double width = x / panels;
    double sum = 1 + density(x);
    for (int half = 1; half < 2 * panels; ++half) sum += (half % 2 == 1 ? 4 : 2) * density(half * width / 2);
    return sum * width / 6;
  };
  // The integral from 0 to pi/2 is half of the Beta function of 1/2 and nu/2.
  const double whole = beta(0.5, nu / 2) / 2;
  const double wanted = (2 * probability - 1) * whole;

  // Newton's method. The integral is concave, so a step from the left does not overshoot, and a step from the right
  // ends on the left. Every step of a run needs a quantile, so a good start matters: the first terms of the quantile's
  // expansion in 1/nu (Abramowitz and Stegun 26.7.5).
  const double z = normal_quantile(probability);
  double x = std::atan((z + (z * z * z + z) / (4 * nu)) / std::sqrt(nu));
  for (int iteration = 0; iteration < 100; ++iteration) {
    const double change = (wanted - integral(x)) / density(x);
    x += change;
    if (std::abs(change) <= 1e-9 * x) break;
  }
  return std::sqrt(nu) * std::tan(x);
}

}  // namespace copus
