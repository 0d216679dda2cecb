#include "copus/train/update_rule.h"

#include "copus/train/adamw_rule.h"

namespace copus {

std::unique_ptr<const UpdateRule> make_update_rule(const JobConfig& config) {
  if (config.optimizer.kind == OptimizerKind::adamw) return std::make_unique<AdamWRule>(config);
  return std::make_unique<UpdateRule>();
}

}  // namespace copus
