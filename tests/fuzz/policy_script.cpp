// Scripts of switches, which may be the decisions.jsonl of another run.
#include <limits>

#include "copus/orchestrator/observation.h"
#include "copus/orchestrator/policies/policies.h"
#include "fuzz_target.h"

using namespace copus;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  RunConfig config;
  config.adapt.policy = PolicyKind::script;
  config.adapt.file = "script.jsonl";
  const auto policy = accepted([&] { return make_script_policy(config, text_of(data, size)); });
  if (!policy) return 0;
  Observation observation;
  for (const int64_t step : {int64_t{1}, int64_t{100}, std::numeric_limits<int64_t>::max()}) {
    observation.step = step;
    (*policy)->is_due(observation, Configuration());
  }
  return 0;
}
