#include "copus/base/text/duration.h"

#include <charconv>
#include <cmath>
#include <limits>

namespace copus {

namespace {

std::optional<double> seconds_of(char unit) {
  switch (unit) {
    case 'd':
      return 86400;
    case 'h':
      return 3600;
    case 'm':
      return 60;
    case 's':
      return 1;
    default:
      return std::nullopt;
  }
}

}  // namespace

std::optional<double> parse_duration(std::string_view text) {
  double total = 0;
  double last_unit = std::numeric_limits<double>::infinity();
  const char* const end = text.data() + text.size();
  const char* position = text.data();
  do {
    double number = 0;
    const auto [rest, error] = std::from_chars(position, end, number, std::chars_format::fixed);
    if (error != std::errc() || !std::isfinite(number) || std::signbit(number)) return std::nullopt;
    if (rest == end) return position == text.data() ? std::optional(number) : std::nullopt;
    const std::optional<double> unit = seconds_of(*rest);
    if (!unit || *unit >= last_unit) return std::nullopt;
    total += number * *unit;
    last_unit = *unit;
    position = rest + 1;
  } while (position != end);
  return total;
}

}  // namespace copus
