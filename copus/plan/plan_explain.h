// `copus plan --explain d=8,t=1,p=1`: why a configuration is not the best choice.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "copus/description/configuration_text.h"
#include "copus/plan/plan.h"

namespace copus {

struct Explanation {
  int64_t global_batch = 0;
  enum class Verdict {
    fits,
    too_large,   // it needs more memory than there is
    impossible,  // its numbers are inconsistent
  };
  Verdict verdict = Verdict::impossible;
  std::string text;                                   // in sentences
  std::optional<PlannedConfiguration> configuration;  // the fastest one that fits, or the one that needs least memory
};

template <>
inline constexpr auto named_values<Explanation::Verdict> =
    std::to_array<NamedValue<Explanation::Verdict>>({{Explanation::Verdict::fits, "fits"},
                                                     {Explanation::Verdict::too_large, "too large"},
                                                     {Explanation::Verdict::impossible, "impossible"}});

// Explains the configuration that `asked` names, at one of the plan's batches. d, t and p default to 1. Options that
// `asked` does not name take the fastest of the values that the plan considers. If none of these fits into memory,
// other values are tried too.
Explanation explain(const PlanQuestion& question, const BatchPlan& batch, const ConfigurationChange& asked);

}  // namespace copus
