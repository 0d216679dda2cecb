// AdamW with decoupled weight decay (Loshchilov & Hutter 2019, algorithm 2).
#pragma once

#include <vector>

#include "copus/model/kernels/kernels.h"
#include "copus/train/optimizer/optimizer.h"

namespace copus {

// Returns the coefficients of one AdamW update.
kernels::AdamWStep adamw_step(const OptimizerConfig& config, const WeightUpdate& update, bool decays);

class AdamW final : public Optimizer {
 public:
  AdamW(ParameterStore& parameters, const OptimizerConfig& config, const std::vector<BucketState>& state)
      : Optimizer(parameters, optimizer_slots(OptimizerKind::adamw), state), config_(config) {}

 private:
  void change(const UpdatedElements& elements, const WeightUpdate& update) const override;

  OptimizerConfig config_;
};

}  // namespace copus
