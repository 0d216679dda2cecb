// Spans of time as people write them.
#pragma once

#include <optional>
#include <string_view>

namespace copus {

// The longest useful time, in seconds: about 31 years. Clocks count further than that.
inline constexpr double longest_duration = 1e9;

// Reads seconds from "90", "90s", "3m", "1h30m", "1.5h" or "2d": numbers with the units d, h, m and s from large to
// small. A number without a unit is in seconds. Returns nothing for any other text.
std::optional<double> parse_duration(std::string_view text);

}  // namespace copus
