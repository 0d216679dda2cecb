// Muon (Jordan et al. 2024) for hidden matrices, AdamW for all other parameters.
#pragma once

#include <vector>

#include "copus/train/optimizer/optimizer.h"

namespace copus {

// The direction of a matrix's update depends on all its elements, which several ranks may hold. So Orthogonalization
// (step/orthogonalization.h) computes the direction before the ranks agree on the step, and stores it in the second
// slot. This makes the update itself elementwise, so that any process with the state can make or complete it.
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
