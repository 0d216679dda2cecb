#include "copus/train/optimizer/signum.h"

#include "copus/model/kernels/kernels.h"

namespace copus {

void Signum::change(const UpdatedElements& elements, const WeightUpdate& update) const {
  kernels::SignumStep step;
  step.lr = update.learning_rate;
  step.beta = config_.beta1;
  step.gradient_scale = update.gradient_factor;
  step.weight_decay = elements.decays ? config_.weight_decay * update.weight_decay_factor : 0;
  kernels::signum_(elements.master, elements.slots[0], elements.gradient, step);
}

}  // namespace copus
