#include "copus/statistics/student_t.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "copus/base/error.h"

namespace copus {

namespace {

// Degrees of freedom from which Student's distribution equals the normal one to a relative error of 1e-6.
constexpr double almost_normal = 1e7;

}  // namespace

// The method substitutes t = sqrt(nu) tan(x); the density of x is then proportional to cos(x)^(nu - 1).
double student_t_quantile(double probability, double degrees_of_freedom) {
  COPUS_CHECK(0.5 < probability && probability < 1 && degrees_of_freedom >= 1, probability, ", ", degrees_of_freedom);
  const double nu = std::min(degrees_of_freedom, almost_normal);
  const auto density = [&](double x) { return std::pow(std::cos(x), nu - 1); };
  // The integral of the density from 0 to x by Simpson's rule; the density is smooth there, since x stays below pi/2.
  const auto integral = [&](double x) {
    constexpr int panels = 64;
    const double width = x / panels;
    double sum = 0;
    for (int panel = 0; panel < panels; ++panel) {
      sum += density(panel * width) + 4 * density((panel + 0.5) * width) + density((panel + 1) * width);
    }
    return sum * width / 6;
  };
  // The integral from 0 to pi/2 is half of the Beta function of 1/2 and nu/2.
  const double whole = std::beta(0.5, nu / 2) / 2;
  const double wanted = (2 * probability - 1) * whole;

  // Newton's method from the left; the integral is concave, so that no step goes too far.
  double x = 0;
  for (int iteration = 0; iteration < 100; ++iteration) {
    const double change = (wanted - integral(x)) / density(x);
    x += change;
    if (change <= 1e-9 * x) break;
  }
  return std::sqrt(nu) * std::tan(x);
}

}  // namespace copus
