#include "copus/checkpoint/checkpoint_files.h"

#include <charconv>
#include <string_view>

namespace copus {
namespace {

constexpr std::string_view prefix = "step-";
constexpr size_t min_digits = 8;

}  // namespace

std::string checkpoint_name(int64_t step) {
  const std::string digits = std::to_string(step);
  return std::string(prefix) + std::string(digits.size() < min_digits ? min_digits - digits.size() : 0, '0') + digits;
}

std::optional<int64_t> parse_checkpoint_name(const std::string& name) {
  if (!name.starts_with(prefix)) return std::nullopt;
  int64_t step = -1;
  const char* end = name.data() + name.size();
  const auto result = std::from_chars(name.data() + prefix.size(), end, step);
  const bool valid = result.ec == std::errc() && result.ptr == end && checkpoint_name(step) == name;
  return valid ? std::optional(step) : std::nullopt;
}

bool is_plain_file_name(const std::string& name) {
  constexpr std::string_view not_in_names("/\0", 2);
  return !name.empty() && name != "." && name != ".." && name.find_first_of(not_in_names) == std::string::npos;
}

}  // namespace copus
