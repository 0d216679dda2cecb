#include "copus/statistics/student_t.h"

#include <array>
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

// The rule of Gauss and Legendre with 20 points on [-1, 1]: the positive nodes and their weights (Abramowitz and
// Stegun, table 25.4).
struct Node {
  double at, weight;
};
constexpr std::array<Node, 10> legendre = {{{0.076526521133497338, 0.15275338713072628},
                                            {0.22778585114164507, 0.14917298647260424},
                                            {0.37370608871541955, 0.1420961093183824},
                                            {0.51086700195082713, 0.13168863844917689},
                                            {0.63605368072651502, 0.11819453196151861},
                                            {0.7463319064601508, 0.10193011981724071},
                                            {0.83911697182221878, 0.083276741576704713},
                                            {0.91223442825132595, 0.06267204833410879},
                                            {0.96397192727791381, 0.040601429800386446},
                                            {0.993128599185095, 0.017614007139150893}}};

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
  if (degrees_of_freedom >= almost_normal) return normal_quantile(probability);
  const double nu = degrees_of_freedom;
  const auto density = [&](double x) { return std::pow(std::cos(x), nu - 1); };
  // The integral from 0 to x. Below two degrees of freedom the density has a steep slope near pi/2, which costs
  // accuracy at large probabilities.
  const auto integral = [&](double x) {
    double sum = 0;
    for (const auto& [node, weight] : legendre) {
      sum += weight * (density(x / 2 * (1 - node)) + density(x / 2 * (1 + node)));
    }
    return sum * x / 2;
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
