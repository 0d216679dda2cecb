#include "copus/statistics/learning_rate_scaling.h"

#include <algorithm>
#include <cmath>

#include "copus/base/error.h"
#include "copus/statistics/efficiency.h"

namespace copus {

double capped_square_root_factor(double batch, double critical_batch, double reference_batch) {
  return std::sqrt(linear_factor(std::min(batch, std::max(reference_batch, critical_batch)), reference_batch));
}

double linear_factor(double batch, double reference_batch) {
  COPUS_CHECK(batch > 0 && reference_batch > 0, batch, " against ", reference_batch);
  return batch / reference_batch;
}

// The factors of the last two rules contain (phi + B_ref) / (phi + B), the statistical efficiency at a critical batch
// of phi.
double adascale_factor(double batch, double noise_scale, double reference_batch) {
  return linear_factor(batch, reference_batch) * statistical_efficiency(batch, noise_scale, reference_batch);
}

double surge_factor(double batch, double noise_scale, double reference_batch) {
  return std::sqrt(linear_factor(batch, reference_batch)) * statistical_efficiency(batch, noise_scale, reference_batch);
}

double variance_ratio_after_switch(double variance_ratio, double batch_before, double batch_after) {
  COPUS_CHECK(batch_before > 0 && batch_after > 0, batch_before, " to ", batch_after);
  return variance_ratio * batch_after / batch_before;
}

double variance_ratio_after_update(double variance_ratio, double beta2) { return 1 - (1 - variance_ratio) * beta2; }

double shrink_ramp_factor(double variance_ratio) { return std::sqrt(std::min(1.0, variance_ratio)); }

}  // namespace copus
