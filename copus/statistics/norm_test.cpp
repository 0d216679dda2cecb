#include "copus/statistics/norm_test.h"

#include <algorithm>
#include <cmath>

#include "copus/base/error.h"

namespace copus {

NormTestResult norm_test(const WorkerNorms& norms, double eta, double max_batch) {
  COPUS_CHECK(norms.workers >= 2 && norms.batch > 0 && eta > 0, norms.workers, ", ", norms.batch, ", ", eta);
  // Var/B, the variance of the mean of J workers' gradients.
  const double variance = (norms.mean_squared_norm - norms.squared_norm) / (norms.workers - 1);
  const double allowed = eta * eta * norms.squared_norm;
  if (variance <= allowed || !std::isfinite(variance)) return {true, norms.batch};
  const double wanted = std::ceil(norms.batch * variance / allowed);
  return {false, std::max(norms.batch, std::min(wanted, max_batch))};
}

}  // namespace copus
