// JSON as text. What is written may hold names, paths and cells of files that are not UTF-8, of which JSON consists;
// the library would throw at them. Whoever includes this links the JSON library.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace copus {

// Writes a value in one line or, with `indent` >= 0, in several, indented by so many blanks a level. Bytes that are not
// UTF-8 become U+FFFD, the sign for what cannot be shown.
template <class Json>
std::string json_text(const Json& value, int indent = -1) {
  return value.dump(indent, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

}  // namespace copus
