// The optimizers that Copus supports, with their names in a configuration.
#pragma once

#include <array>

#include "copus/base/named_values.h"

namespace copus {

enum class OptimizerKind { adamw, signum, muon };
template <>
inline constexpr auto named_values<OptimizerKind> = std::to_array<NamedValue<OptimizerKind>>(
    {{OptimizerKind::adamw, "adamw"}, {OptimizerKind::signum, "signum"}, {OptimizerKind::muon, "muon"}});

// Whether an update needs unsharded matrices. Ranks then assemble them before they agree on the step.
constexpr bool needs_whole_matrices(OptimizerKind kind) { return kind == OptimizerKind::muon; }

}  // namespace copus
