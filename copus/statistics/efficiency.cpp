#include "copus/statistics/efficiency.h"

#include <cmath>

#include "copus/base/error.h"

namespace copus {

double critical_batch(const CriticalBatchRule& rule, double noise_scale, double consumed_samples) {
  COPUS_CHECK(rule.calibration > 0 && rule.updates >= 0 && noise_scale >= 0 && consumed_samples >= 0, rule.calibration,
              ", ", rule.updates, ", ", noise_scale, ", ", consumed_samples);
  const double by_noise = rule.calibration * noise_scale;
  return rule.updates > 0 ? 1 / (1 / by_noise + rule.updates / consumed_samples) : by_noise;
}

// Written as a quotient that gives 1 for an infinite critical batch.
double statistical_efficiency(double batch, double critical_batch, double reference_batch) {
  COPUS_CHECK(batch > 0 && critical_batch >= 0 && reference_batch > 0, batch, ", ", critical_batch, ", ",
              reference_batch);
  return 1 - (batch - reference_batch) / (critical_batch + batch);
}

double goodput(double throughput, double efficiency, double rate_factor, double alpha) {
  return throughput * efficiency * std::pow(rate_factor, 2 * alpha);
}

}  // namespace copus
