#include "copus/orchestrator/policy.h"

#include "copus/base/error.h"
#include "copus/orchestrator/policies.h"

namespace copus {

std::unique_ptr<Policy> make_policy(const RunConfig& config, std::string_view file_text) {
  const AdaptConfig& adapt = config.adapt;
  switch (adapt.policy) {
    case PolicyKind::none:
      break;
    case PolicyKind::fixed:
      return make_fixed_policy(config);
    case PolicyKind::copus:
      return make_goodput_policy(config, std::nullopt);
    case PolicyKind::cbs_pessimistic:
    case PolicyKind::cbs_optimistic:
      return make_critical_batch_policy(config);
    case PolicyKind::steps:
      return make_steps_policy(config);
    case PolicyKind::olmo:
      return make_olmo_policy(config);
    case PolicyKind::norm_test:
      return make_norm_test_policy(config);
    case PolicyKind::cona:
      return make_cona_policy(config);
    case PolicyKind::oracle:
      return make_goodput_policy(config, parse_noise_trace(file_text, adapt.file));
    case PolicyKind::script:
      return make_script_policy(config, file_text);
  }
  fail_check("a policy", __FILE__, __LINE__, concat("adapt.policy \"", to_string(adapt.policy), "\""));
}

}  // namespace copus
