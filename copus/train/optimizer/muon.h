// Muon (Jordan et al. 2024) for hidden matrices, AdamW for all other parameters.
#pragma once

#include <vector>

#include "copus/train/optimizer/optimizer.h"

namespace copus {

// The direction of a matrix' update depends on all of its elements, which several ranks may hold. Orthogonalization
// (step/orthogonalization.h) computes it before the ranks agree on the step, and leaves it in the second slot. So the
// update itself is elementwise: any process that has the state can make or complete it.
class Muon final : public Optimizer {
 public:
  Muon(ParameterStore& parameters, const OptimizerConfig& config, const std::vector<BucketState>& state)
      : Optimizer(parameters, optimizer_slots(OptimizerKind::muon), state), config_(config) {}

  void discard_directions() override;

 private:
  void change(const UpdatedElements& elements, const WeightUpdate& update) const override;

  OptimizerConfig config_;
};

}  // namespace copus
