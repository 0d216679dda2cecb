// AdamW with decoupled weight decay (Loshchilov & Hutter 2019, algorithm 2).
#pragma once

#include <string_view>
#include <vector>

#include "copus/train/optimizer.h"

namespace copus {

class AdamW final : public Optimizer {
 public:
  AdamW(ParameterStore& parameters, const OptimizerConfig& config, const std::vector<BucketState>& state)
      : Optimizer(parameters, adamw_slots(), state), config_(config) {}

 private:
  void change(const UpdatedElements& elements, const WeightUpdate& update) const override;

  OptimizerConfig config_;
};

// AdamW's second moments in runs that change their batch (statistics/learning_rate_scaling.h). The scalars are
// - variance_ratio: rho of the second moments after the latest update, and batch: the batch of that update,
// - only with optimizer.scale_beta2, beta2: that of the latest update, and beta2_product: the product over all updates,
//   for the bias correction.
class AdamWRule final : public UpdateRule {
 public:
  explicit AdamWRule(const JobConfig& config);

  std::vector<std::string_view> scalar_names() const override;
  OptimizerScalars resume(const OptimizerScalars& stored, int64_t updates, double batch) const override;
  OptimizerScalars after_update(const OptimizerScalars& scalars, double batch) const override;
  double rate_factor(const OptimizerScalars& after) const override;

 private:
  double beta2_;
  double reference_batch_;
  bool scales_beta2_;
};

}  // namespace copus
