// Formats numbers as short text for people: bytes, durations, counts, rates, and numbers of things.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace copus {

inline constexpr double gibibyte = 1024.0 * 1024.0 * 1024.0;  // bytes

// Formats one number by printf's rules. The format must be a literal: format_number("%.2f", x).
std::string format_number(const char* format, double value);

std::string format_bytes(double bytes);       // "812 B", "3.4 GiB"
std::string format_duration(double seconds);  // "0.25 s", "12.3 s", "2 min 05 s", "3 h 07 min", "2 d 04 h"
std::string format_count(double count);       // "999", "1.9 M", "45.3 k"
std::string format_rate(double per_second, std::string_view what);  // "45.3 k tokens/s"

// Counts something in words: "1 switch", "2 switches". `many` defaults to `one` plus an s.
std::string counted(int64_t count, std::string_view one, std::string_view many = {});

}  // namespace copus
