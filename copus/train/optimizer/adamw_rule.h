// How AdamW adapts to changes of the batch, without tensors.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "copus/train/optimizer/update_rule.h"

namespace copus {

// AdamW's second moments in runs that change their batch (statistics/learning_rate_scaling.h). The scalars are:
// - variance_ratio: rho of the second moments after the latest update;
// - batch: the batch of the latest update;
// - beta2 (only with optimizer.scale_beta2): the beta2 of the latest update;
// - beta2_product (only with optimizer.scale_beta2): the product of beta2 over all updates, for the bias correction.
class AdamWRule : public UpdateRule {
 public:
  static constexpr std::string_view batch = "batch", variance_ratio = "variance_ratio";
  static constexpr std::string_view beta2 = "beta2", beta2_product = "beta2_product";

  explicit AdamWRule(const JobConfig& config);

  std::vector<std::string_view> scalar_names() const override;
  OptimizerScalars begin(double first_batch) const override;
  OptimizerScalars after_update(const OptimizerScalars& scalars, double new_batch) const override;
  double rate_factor(const OptimizerScalars& after) const override { return adamw_factor(after); }
  // Returns the rate_factor() that follows from these scalars.
  static double adamw_factor(const OptimizerScalars& after);

 private:
  double beta2_;
  double reference_batch_;
  bool scales_beta2_;
};

// Muon's rule: AdamW's scalars, for the parameters that AdamW updates.
class MuonRule final : public AdamWRule {
 public:
  using AdamWRule::AdamWRule;

  // Muon keeps no second moments for hidden matrices. Only parameters that AdamW updates have a factor (adamw_factor).
  double rate_factor(const OptimizerScalars& /*after*/) const override { return 1; }
};

}  // namespace copus
