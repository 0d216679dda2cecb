#include "copus/train/optimizer/muon.h"

#include "copus/model/kernels/kernels.h"
#include "copus/train/optimizer/adamw.h"

namespace copus {

void Muon::change(const UpdatedElements& elements, const WeightUpdate& update) const {
  if (elements.are_hidden_matrices) {
    const kernels::MuonStep step{
        .lr = update.learning_rate,
        .momentum = config_.muon.momentum,
        .weight_decay = elements.decays ? config_.weight_decay * update.weight_decay_factor : 0,
        .gradient_scale = update.gradient_factor};
    kernels::muon_(elements.master, elements.slots[0], elements.slots[1], elements.gradient, step);
    return;
  }
  kernels::AdamWStep step = adamw_step(config_, update, elements.decays);
  const double factor = AdamWRule::adamw_factor(update.scalars);
  step.lr *= config_.muon.adamw_lr_ratio * factor;
  if (config_.scale_weight_decay) step.weight_decay /= factor;  // weight_decay_factor does not include this factor
  kernels::adamw_({elements.master, elements.slots[0], elements.slots[1]}, elements.gradient, step);
}

void Muon::discard_directions() {
  for_hidden_matrices([](const UpdatedElements& elements) { elements.slots[1].zero_(); });
}

}  // namespace copus
