#include "copus/base/json_text.h"

#include <limits>

namespace copus {

bool nests_too_deeply(std::string_view json) {
  int depth = 0;
  bool is_in_string = false;
  for (size_t i = 0; i < json.size(); ++i) {
    const char character = json[i];
    if (is_in_string) {
      if (character == '\\') ++i;  // the next one ends no string
      if (character == '"') is_in_string = false;
    } else if (character == '"') {
      is_in_string = true;
    } else if (character == '[' || character == '{') {
      if (++depth > deepest_json) return true;
    } else if (character == ']' || character == '}') {
      --depth;
    }
  }
  return false;
}

nlohmann::json parse_json(std::string_view text) {
  if (nests_too_deeply(text)) return nlohmann::json::value_t::discarded;
  return nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
}

std::optional<int64_t> integer_of(const nlohmann::json& value) {
  if (!value.is_number_integer()) return std::nullopt;
  constexpr auto most = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  if (value.is_number_unsigned() && value.get<uint64_t>() > most) return std::nullopt;
  return value.get<int64_t>();
}

}  // namespace copus
