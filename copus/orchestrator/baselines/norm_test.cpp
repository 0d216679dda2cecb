#include "copus/orchestrator/baselines/norm_test.h"

#include <algorithm>
#include <cmath>

#include "copus/base/error.h"

namespace copus {

double variance_of_batch_gradient(const NormObservation& norms) {
  COPUS_CHECK(0 < norms.small_batch && norms.small_batch < norms.large_batch, norms.small_batch, ", ",
              norms.large_batch);
  return (norms.small_squared_norm - norms.large_squared_norm) / (norms.large_batch / norms.small_batch - 1);
}

NormTestResult norm_test(const NormObservation& norms, double eta, double max_batch) {
  COPUS_CHECK(eta > 0, eta);
  const double variance = variance_of_batch_gradient(norms);
  const double allowed = eta * eta * norms.large_squared_norm;
  if (variance <= allowed || !std::isfinite(variance)) return {true, norms.large_batch};
  const double wanted = std::ceil(norms.large_batch * variance / allowed);
  return {false, std::max(norms.large_batch, std::min(wanted, max_batch))};
}

}  // namespace copus
