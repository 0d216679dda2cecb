#include "copus/train/optimizer/adamw.h"

#include <cmath>
#include <optional>

#include "copus/model/kernels/kernels.h"
#include "copus/train/optimizer/adamw_rule.h"

namespace copus {

void AdamW::change(const UpdatedElements& elements, const WeightUpdate& update) const {
  const auto updates = static_cast<double>(update.number);
  const std::optional<double> product = update.scalars.find(AdamWRule::beta2_product);
  kernels::AdamWStep step;
  step.lr = update.learning_rate;
  step.beta1 = config_.beta1;
  step.beta2 = update.scalars.find(AdamWRule::beta2).value_or(config_.beta2);
  step.epsilon = config_.epsilon;
  step.bias_correction1 = 1 - std::pow(config_.beta1, updates);
  step.bias_correction2 = 1 - (product ? *product : std::pow(config_.beta2, updates));
  step.gradient_scale = update.gradient_factor;
  step.weight_decay = elements.decays ? config_.weight_decay * update.weight_decay_factor : 0;
  kernels::adamw_({elements.master, elements.slots[0], elements.slots[1]}, elements.gradient, step);
}

}  // namespace copus
