#include "copus/statistics/learning_rate_scaling.h"

#include <algorithm>
#include <cmath>

#include "copus/base/error.h"

namespace copus {

double rate_factor(const RateRule& rule, double batch, double cap) {
  const double counted = rule.is_capped ? std::min(batch, std::max(rule.reference_batch, cap)) : batch;
  return std::pow(linear_factor(counted, rule.reference_batch), rule.exponent);
}

double cap_towards(const RateRule& rule, double batch, double cap, double wanted) {
  COPUS_CHECK(cap >= 0 && wanted >= 0, cap, ", ", wanted);
  const double now = rate_factor(rule, batch, cap);
  const double then = rate_factor(rule, batch, wanted);
  const double allowed = std::clamp(then, now / (1 + largest_rate_change), now * (1 + largest_rate_change));
  return allowed == then ? wanted : cap_of_factor(rule, allowed);
}

double cap_of_factor(const RateRule& rule, double factor) {
  COPUS_CHECK(factor > 0, factor);
  if (rule.exponent == 0) return rule.reference_batch;  // every cap gives the same rate
  return rule.reference_batch * std::pow(factor, 1 / rule.exponent);
}

double linear_factor(double batch, double reference_batch) {
  COPUS_CHECK(batch > 0 && reference_batch > 0, batch, " against ", reference_batch);
  return batch / reference_batch;
}

double scaled_beta2(double beta2, double batch, double reference_batch) {
  return std::pow(beta2, linear_factor(batch, reference_batch));
}

double weight_decay_factor(double batch, double reference_batch, double rate_factor) {
  COPUS_CHECK(rate_factor > 0, rate_factor);
  return linear_factor(batch, reference_batch) / rate_factor;
}

double variance_ratio_after_switch(double variance_ratio, double batch_before, double batch_after) {
  COPUS_CHECK(batch_before > 0 && batch_after > 0, batch_before, " to ", batch_after);
  return variance_ratio * batch_after / batch_before;
}

double variance_ratio_after_update(double variance_ratio, double beta2) { return 1 - (1 - variance_ratio) * beta2; }

double shrink_ramp_factor(double variance_ratio) { return std::sqrt(std::min(1.0, variance_ratio)); }

}  // namespace copus
