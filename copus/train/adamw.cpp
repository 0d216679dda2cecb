#include "copus/train/adamw.h"

#include <cmath>

#include "copus/model/kernels.h"
#include "copus/statistics/learning_rate_scaling.h"

namespace copus {

namespace {

// The names of the scalars, as checkpoints have them.
constexpr std::string_view batch_name = "batch";
constexpr std::string_view beta2_name = "beta2";
constexpr std::string_view beta2_product_name = "beta2_product";
constexpr std::string_view variance_ratio_name = "variance_ratio";

}  // namespace

void AdamW::change(const UpdatedElements& elements, const WeightUpdate& update) const {
  const auto updates = static_cast<double>(update.number);
  const std::optional<double> beta2_product = update.scalars.find(beta2_product_name);
  kernels::AdamWStep step;
  step.lr = update.learning_rate;
  step.beta1 = config_.beta1;
  step.beta2 = update.scalars.find(beta2_name).value_or(config_.beta2);
  step.epsilon = config_.epsilon;
  step.bias_correction1 = 1 - std::pow(config_.beta1, updates);
  step.bias_correction2 = 1 - (beta2_product ? *beta2_product : std::pow(config_.beta2, updates));
  step.gradient_scale = update.gradient_factor;
  step.weight_decay = elements.decays ? config_.weight_decay * update.weight_decay_factor : 0;
  kernels::adamw_({elements.master, elements.slots[0], elements.slots[1]}, elements.gradient, step);
}

AdamWRule::AdamWRule(const JobConfig& config)
    : beta2_(config.optimizer.beta2),
      reference_batch_(static_cast<double>(reference_batch_of(config))),
      scales_beta2_(config.optimizer.scale_beta2) {}

std::vector<std::string_view> AdamWRule::scalar_names() const {
  return {batch_name, beta2_name, beta2_product_name, variance_ratio_name};
}

// Of a checkpoint without a product every update had the configuration's beta2.
OptimizerScalars AdamWRule::resume(const OptimizerScalars& stored, int64_t updates, double batch) const {
  OptimizerScalars scalars;
  scalars.set(batch_name, stored.find(batch_name).value_or(batch));
  scalars.set(variance_ratio_name, stored.find(variance_ratio_name).value_or(1));
  if (scales_beta2_) {
    const double product = std::pow(beta2_, static_cast<double>(updates));
    scalars.set(beta2_product_name, stored.find(beta2_product_name).value_or(product));
  }
  return scalars;
}

OptimizerScalars AdamWRule::after_update(const OptimizerScalars& scalars, double batch) const {
  const double beta2 = scales_beta2_ ? scaled_beta2(beta2_, batch, reference_batch_) : beta2_;
  const double batch_before = scalars.find(batch_name).value_or(batch);
  double ratio = scalars.find(variance_ratio_name).value_or(1);
  if (batch != batch_before) ratio = variance_ratio_after_switch(ratio, batch_before, batch);
  OptimizerScalars after;
  after.set(batch_name, batch);
  after.set(variance_ratio_name, variance_ratio_after_update(ratio, beta2));
  if (scales_beta2_) {
    after.set(beta2_name, beta2);
    after.set(beta2_product_name, scalars.find(beta2_product_name).value_or(1) * beta2);
  }
  return after;
}

double AdamWRule::rate_factor(const OptimizerScalars& after) const {
  return shrink_ramp_factor(after.find(variance_ratio_name).value_or(1));
}

}  // namespace copus
