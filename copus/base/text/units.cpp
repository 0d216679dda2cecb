#include "copus/base/text/units.h"

#include <array>
#include <cmath>
#include <cstdio>

#include "copus/base/error.h"

namespace copus {
namespace {

// Writes at most three digits before the unit, with one decimal below 100. Consecutive `units` differ by the factor
// `base`.
template <size_t Count>
std::string scaled(double value, double base, const std::array<const char*, Count>& units) {
  if (!std::isfinite(value)) return "?";
  size_t unit = 0;
  // A value that would round to four digits moves on to the next unit.
  while (std::abs(value) >= 999.5 && unit + 1 < Count) {
    value /= base;
    ++unit;
  }
  if (std::abs(value) >= 1e9) return format_number("%.3g", value) + units[unit];  // beyond the largest unit
  const bool whole = std::abs(value) >= 99.95 || value == std::floor(value);
  return format_number(whole && (unit == 0 || std::abs(value) >= 99.95) ? "%.0f" : "%.1f", value) + units[unit];
}

}  // namespace

std::string format_number(const char* format, double value) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), format, value);
  return text.data();
}

std::string format_bytes(double bytes) {
  return scaled(bytes, 1024, std::array{" B", " KiB", " MiB", " GiB", " TiB", " PiB"});
}

std::string format_count(double count) { return scaled(count, 1000, std::array{"", " k", " M", " B", " T"}); }

std::string format_rate(double per_second, std::string_view what) {
  return concat(format_count(per_second), " ", what, "/s");
}

std::string counted(int64_t count, std::string_view one, std::string_view many) {
  if (count == 1) return concat("1 ", one);
  return many.empty() ? concat(count, " ", one, "s") : concat(count, " ", many);
}

std::string format_duration(double seconds) {
  if (!std::isfinite(seconds)) return "?";
  if (std::abs(seconds) < 9.995) return format_number("%.2f s", seconds);
  if (std::abs(seconds) < 59.95) return format_number("%.1f s", seconds);
  if (seconds < 0) return concat("-", format_duration(-seconds));

  const auto two_units = [](long long total, int per_large, const char* large, const char* small) {
    std::array<char, 64> text{};
    std::snprintf(text.data(), text.size(), "%lld %s %02lld %s", total / per_large, large, total % per_large, small);
    return std::string(text.data());
  };
  if (seconds >= 1e12) return format_number("%.3g d", seconds / 86400);
  if (seconds < 3599.5) return two_units(std::llround(seconds), 60, "min", "s");
  if (seconds < 86400 - 30) return two_units(std::llround(seconds / 60), 60, "h", "min");
  return two_units(std::llround(seconds / 3600), 24, "d", "h");
}

}  // namespace copus
