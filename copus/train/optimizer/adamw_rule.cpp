#include "copus/train/optimizer/adamw_rule.h"

#include "copus/statistics/learning_rate_scaling.h"

namespace copus {

AdamWRule::AdamWRule(const JobConfig& config)
    : beta2_(config.optimizer.beta2),
      reference_batch_(static_cast<double>(reference_batch_of(config))),
      scales_beta2_(config.optimizer.scale_beta2) {}

std::vector<std::string_view> AdamWRule::scalar_names() const { return {batch, beta2, beta2_product, variance_ratio}; }

OptimizerScalars AdamWRule::begin(double first_batch) const {
  OptimizerScalars scalars;
  scalars.set(batch, first_batch);
  scalars.set(variance_ratio, 1);
  if (scales_beta2_) scalars.set(beta2_product, 1);
  return scalars;
}

OptimizerScalars AdamWRule::after_update(const OptimizerScalars& scalars, double new_batch) const {
  const double new_beta2 = scales_beta2_ ? scaled_beta2(beta2_, new_batch, reference_batch_) : beta2_;
  const double batch_before = scalars.find(batch).value_or(new_batch);
  double ratio = scalars.find(variance_ratio).value_or(1);
  if (new_batch != batch_before) ratio = variance_ratio_after_switch(ratio, batch_before, new_batch);
  OptimizerScalars after;
  after.set(batch, new_batch);
  after.set(variance_ratio, variance_ratio_after_update(ratio, new_beta2));
  if (scales_beta2_) {
    after.set(beta2, new_beta2);
    after.set(beta2_product, scalars.find(beta2_product).value_or(1) * new_beta2);
  }
  return after;
}

double AdamWRule::adamw_factor(const OptimizerScalars& after) {
  return shrink_ramp_factor(after.find(variance_ratio).value_or(1));
}

}  // namespace copus
