#include "copus/statistics/efficiency.h"

#include <cmath>

#include "copus/base/error.h"

namespace copus {

double critical_batch(double calibration, double noise_scale) { return calibration * noise_scale; }

// The form of the quotient gives 1 for an infinite critical batch.
double statistical_efficiency(double batch, double critical_batch, double reference_batch) {
  COPUS_CHECK(batch > 0 && critical_batch >= 0 && reference_batch > 0, batch, ", ", critical_batch, ", ",
              reference_batch);
  return 1 - (batch - reference_batch) / (critical_batch + batch);
}

double goodput(double throughput, double efficiency, double rate_factor, double alpha) {
  return throughput * efficiency * std::pow(rate_factor, 2 * alpha);
}

}  // namespace copus
