#include "copus/base/numbers/quantile.h"

#include <algorithm>
#include <cmath>

#include "copus/base/error.h"

namespace copus {

double quantile(std::vector<double> values, double share) {
  COPUS_CHECK(!values.empty() && share >= 0 && share <= 1, values.size(), " values, share ", share);
  std::sort(values.begin(), values.end());
  const double position = share * static_cast<double>(values.size() - 1);
  const auto below = static_cast<size_t>(position);
  const size_t above = std::min(below + 1, values.size() - 1);
  return std::lerp(values[below], values[above], position - static_cast<double>(below));
}

Quartiles quartiles(const std::vector<double>& values) {
  return {quantile(values, 0.25), quantile(values, 0.5), quantile(values, 0.75)};
}

}  // namespace copus
