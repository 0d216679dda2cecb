#include "copus/train/optimizer/update_rule.h"

#include "copus/base/error.h"
#include "copus/train/optimizer/adamw_rule.h"

namespace copus {

std::unique_ptr<const UpdateRule> make_update_rule(const JobConfig& config) {
  switch (config.optimizer.kind) {
    case OptimizerKind::adamw:
      return std::make_unique<AdamWRule>(config);
    case OptimizerKind::signum:
      return std::make_unique<UpdateRule>();
    case OptimizerKind::muon:
      return std::make_unique<MuonRule>(config);
  }
  fail_check("known optimizer", __FILE__, __LINE__, "");
}

}  // namespace copus
