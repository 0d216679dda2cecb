// The floating-point types in which a run computes.
#pragma once

#include <array>

#include "copus/base/named_values.h"

namespace copus {

enum class Precision { automatic, fp32, bf16 };
template <>
inline constexpr auto named_values<Precision> = std::to_array<NamedValue<Precision>>(
    {{Precision::automatic, "auto"}, {Precision::fp32, "fp32"}, {Precision::bf16, "bf16"}});

}  // namespace copus
