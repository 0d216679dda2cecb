#include "copus/simulate/draws.h"

#include <cmath>

#include "copus/base/error.h"
#include "copus/base/numbers/philox.h"

namespace copus {

Draws::Draws(uint64_t seed, std::string_view name) : key_(stream_key(seed, name)) {}

// Uses other blocks than normal(), which uses those with counter_high = 0.
double Draws::uniform() {
  const auto block = philox(key_, 1, uniforms_++);
  return static_cast<double>(((uint64_t{block[0]} << 32) | block[1]) >> 11) * 0x1p-53;
}

double Draws::log_uniform(double low, double high) {
  COPUS_CHECK(0 < low && low <= high, low, " .. ", high);
  return low * std::pow(high / low, uniform());
}

int64_t Draws::one_of(int64_t count) {
  COPUS_CHECK(count > 0, count);
  return static_cast<int64_t>(uniform() * static_cast<double>(count));
}

double Draws::normal() { return standard_normal(key_, normals_++); }

double Draws::chi_squared(double degrees) {
  COPUS_CHECK(degrees >= 30, degrees);
  const double variance = 2 / (9 * degrees);
  const double root = 1 - variance + normal() * std::sqrt(variance);
  return degrees * root * root * root;
}

}  // namespace copus
