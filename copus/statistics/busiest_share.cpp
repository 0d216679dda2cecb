#include "copus/statistics/busiest_share.h"

#include <cmath>
#include <limits>

#include "copus/base/error.h"
#include "copus/statistics/student_t.h"

namespace copus {

double busiest_share(double deviation, int64_t ranks, int64_t items) {
  COPUS_CHECK(deviation >= 0 && ranks >= 1 && items >= 1, deviation, ", ", ranks, ", ", items);
  if (ranks == 1) return 1;
  constexpr double normal = std::numeric_limits<double>::infinity();  // degrees of freedom
  const auto count = static_cast<double>(ranks);
  const double score = student_t_quantile((count - 0.375) / (count + 0.25), normal);
  return 1 + deviation / std::sqrt(static_cast<double>(items)) * score;
}

}  // namespace copus
