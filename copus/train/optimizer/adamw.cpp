#include "copus/train/optimizer/adamw.h"

#include <cmath>
#include <optional>

#include "copus/train/optimizer/adamw_rule.h"

namespace copus {

kernels::AdamWStep adamw_step(const OptimizerConfig& config, const WeightUpdate& update, bool decays) {
  const auto updates = static_cast<double>(update.number);
  const std::optional<double> product = update.scalars.find(AdamWRule::beta2_product);
  kernels::AdamWStep step;
  step.lr = update.learning_rate;
  step.beta1 = config.beta1;
  step.beta2 = update.scalars.find(AdamWRule::beta2).value_or(config.beta2);
  step.epsilon = config.epsilon;
  step.bias_correction1 = 1 - std::pow(config.beta1, updates);
  step.bias_correction2 = 1 - (product ? *product : std::pow(config.beta2, updates));
  step.gradient_scale = update.gradient_factor;
  step.weight_decay = decays ? config.weight_decay * update.weight_decay_factor : 0;
  return step;
}

void AdamW::change(const UpdatedElements& elements, const WeightUpdate& update) const {
  kernels::adamw_({elements.master, elements.slots[0], elements.slots[1]}, elements.gradient,
                  adamw_step(config_, update, elements.decays));
}

}  // namespace copus
