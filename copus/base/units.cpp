#include "copus/base/units.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "copus/base/error.h"

namespace copus {
namespace {

std::string print(const char* format, double value) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), format, value);
  return text.data();
}

// Three digits at most in front of the unit, with one decimal below a hundred. `units` go up by the factor `base`.
template <size_t Count>
std::string scaled(double value, double base, const std::array<const char*, Count>& units) {
  if (!std::isfinite(value)) return "?";
  size_t unit = 0;
  // What would be rounded to a fourth digit goes to the next unit.
  while (std::abs(value) >= 999.5 && unit + 1 < Count) {
    value /= base;
    ++unit;
  }
  const bool whole = std::abs(value) >= 99.95 || value == std::floor(value);
  return print(whole && (unit == 0 || std::abs(value) >= 99.95) ? "%.0f" : "%.1f", value) + units[unit];
}

}  // namespace

std::string format_bytes(double bytes) {
  return scaled(bytes, 1024, std::array{" B", " KiB", " MiB", " GiB", " TiB", " PiB"});
}

std::string format_count(double count) { return scaled(count, 1000, std::array{"", " k", " M", " B", " T"}); }

std::string format_rate(double per_second, std::string_view what) {
  return concat(format_count(per_second), " ", what, "/s");
}

std::string format_duration(double seconds) {
  if (!std::isfinite(seconds)) return "?";
  if (std::abs(seconds) < 9.995) return print("%.2f s", seconds);
  if (std::abs(seconds) < 59.95) return print("%.1f s", seconds);
  if (seconds < 0) return concat("-", format_duration(-seconds));

  const auto two_units = [](long long total, int per_large, const char* large, const char* small) {
    std::array<char, 64> text{};
    std::snprintf(text.data(), text.size(), "%lld %s %02lld %s", total / per_large, large, total % per_large, small);
    return std::string(text.data());
  };
  if (seconds < 3599.5) return two_units(std::llround(seconds), 60, "min", "s");
  if (seconds < 86400 - 30) return two_units(std::llround(seconds / 60), 60, "h", "min");
  return two_units(std::llround(seconds / 3600), 24, "d", "h");
}

double parse_duration(std::string_view text, std::string_view what) {
  const auto reject = [&]() -> double {
    throw UserError(concat(what, ": \"", text,
                           "\" is not a duration. Give a number of seconds above zero (\"200\") or ",
                           "days, hours, minutes and seconds in this order (\"3m\", \"1h30m\", \"90s\")."));
  };
  struct Unit {
    char letter;
    double seconds;
  };
  constexpr std::array units{Unit{'d', 86400}, Unit{'h', 3600}, Unit{'m', 60}, Unit{'s', 1}};

  double total = 0;
  size_t next_unit = 0;
  const char* position = text.data();
  const char* const end = position + text.size();
  while (position != end) {
    if (*position < '0' || *position > '9') return reject();
    double number = 0;
    const auto [rest, error] = std::from_chars(position, end, number, std::chars_format::fixed);
    if (error != std::errc()) return reject();
    if (rest == end && position == text.data()) {  // a plain number
      total = number;
      break;
    }
    while (next_unit < units.size() && (rest == end || units[next_unit].letter != *rest)) ++next_unit;
    if (next_unit == units.size()) return reject();
    total += number * units[next_unit++].seconds;
    position = rest + 1;
  }
  if (!(total > 0) || !std::isfinite(total)) return reject();
  return total;
}

}  // namespace copus
