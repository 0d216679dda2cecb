// The optimizers that Copus supports, by their names in a configuration.
#pragma once

#include <array>

#include "copus/base/named_values.h"

namespace copus {

enum class OptimizerKind { adamw, signum };
template <>
inline constexpr auto named_values<OptimizerKind> =
    std::to_array<NamedValue<OptimizerKind>>({{OptimizerKind::adamw, "adamw"}, {OptimizerKind::signum, "signum"}});

}  // namespace copus
