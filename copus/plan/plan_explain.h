// `copus plan --explain d=8,t=1,p=1`: why a configuration is not the one to take.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "copus/plan/plan.h"

namespace copus {

// What of a configuration was named; the rest may be as it is fastest.
struct PartialConfiguration {
  int64_t data_parallel = 1;
  int64_t tensor_parallel = 1;
  int64_t pipeline_parallel = 1;
  std::optional<int64_t> virtual_stages;
  std::optional<int64_t> micro_batch;
  std::optional<int64_t> zero_stage;
  std::optional<bool> sequence_parallel;
  std::optional<PipelineSchedule> schedule;
  std::optional<Recompute> recompute;
};

// Reads "d=8,t=1,p=1,v=2,mb=4,zero=1,sp=1,schedule=1f1b,recompute=full"; d, t and p are 1 where they are left out.
// Throws UserError: a key or value that there is not.
PartialConfiguration parse_partial_configuration(std::string_view text);

struct Explanation {
  int64_t global_batch = 0;
  // "fits": it can be run, and is one of the plan's. "too large": it needs too much memory. "impossible": the numbers
  // do not go together.
  enum class Verdict { fits, too_large, impossible } verdict = Verdict::impossible;
  std::string text;                                   // a sentence or some
  std::optional<PlannedConfiguration> configuration;  // the fastest that fits, or the one that needs least memory
};

std::string_view to_string(Explanation::Verdict verdict);

// At one of the plan's batches.
Explanation explain(const PlanQuestion& question, const BatchPlan& batch, const PartialConfiguration& asked);

}  // namespace copus
