// Signum (Bernstein et al. 2018, arXiv 1802.04434): the sign of a momentum, with decoupled weight decay.
#pragma once

#include <vector>

#include "copus/train/optimizer/optimizer.h"

namespace copus {

class Signum final : public Optimizer {
 public:
  Signum(ParameterStore& parameters, const OptimizerConfig& config, const std::vector<BucketState>& state)
      : Optimizer(parameters, optimizer_slots(OptimizerKind::signum), state), config_(config) {}

 private:
  void change(const UpdatedElements& elements, const WeightUpdate& update) const override;

  OptimizerConfig config_;
};

}  // namespace copus
