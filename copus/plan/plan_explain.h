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
  // "fits": it can be run, and is one of the plan's. "too large": it needs too much memory. "impossible": the numbers
  // do not go together.
  enum class Verdict { fits, too_large, impossible } verdict = Verdict::impossible;
  std::string text;                                   // a sentence or some
  std::optional<PlannedConfiguration> configuration;  // the fastest that fits, or the one that needs least memory
};

template <>
inline constexpr auto named_values<Explanation::Verdict> =
    std::to_array<NamedValue<Explanation::Verdict>>({{Explanation::Verdict::fits, "fits"},
                                                     {Explanation::Verdict::too_large, "too large"},
                                                     {Explanation::Verdict::impossible, "impossible"}});

// At one of the plan's batches, which `asked` may name. d, t and p are 1 where they are not named; the rest is then as
// it is fastest among what the plan looks at, and beyond that only where nothing of it fits.
Explanation explain(const PlanQuestion& question, const BatchPlan& batch, const ConfigurationChange& asked);

}  // namespace copus
