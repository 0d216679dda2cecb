#include "copus/train/adamw.h"

#include <cmath>

#include "copus/model/kernels.h"

namespace copus {

void AdamW::change(const UpdatedElements& elements, const WeightUpdate& update) const {
  const UpdateScaling& scaling = update.scaling;
  const auto updates = static_cast<double>(update.number);
  kernels::AdamWStep step;
  step.lr = update.learning_rate;
  step.beta1 = config_.beta1;
  step.beta2 = scaling.beta2 ? scaling.beta2->value : config_.beta2;
  step.epsilon = config_.epsilon;
  step.bias_correction1 = 1 - std::pow(config_.beta1, updates);
  step.bias_correction2 = 1 - (scaling.beta2 ? scaling.beta2->product : std::pow(config_.beta2, updates));
  step.gradient_scale = update.gradient_factor;
  step.weight_decay = elements.decays ? config_.weight_decay * scaling.weight_decay_factor : 0;
  kernels::adamw_({elements.master, elements.slots[0], elements.slots[1]}, elements.gradient, step);
}

}  // namespace copus
