// `copus plan --explain d=8,t=1,p=1`: why a configuration is not the one to take.
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
    impossible,  // the numbers do not go together
  };
  Verdict verdict = Verdict::impossible;
  std::string text;                                   // in sentences
  std::optional<PlannedConfiguration> configuration;  // the fastest that fits, or the one that needs least memory
};

template <>
inline constexpr auto named_values<Explanation::Verdict> =
    std::to_array<NamedValue<Explanation::Verdict>>({{Explanation::Verdict::fits, "fits"},
                                                     {Explanation::Verdict::too_large, "too large"},
                                                     {Explanation::Verdict::impossible, "impossible"}});

// Explains what `asked` names, at one of the plan's batches. d, t and p are 1 where they are not named. What else is
// not named is as it is fastest among what the plan looks at, and beyond that only where nothing of it fits.
Explanation explain(const PlanQuestion& question, const BatchPlan& batch, const ConfigurationChange& asked);

}  // namespace copus
