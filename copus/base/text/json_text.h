// Reads and writes JSON as text. JSON from other programs may hold anything. In our own JSON, names, paths and table
// cells may contain bytes that are not UTF-8, which JSON does not allow. Users of this header must link the JSON
// library.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace copus {

// The deepest allowed nesting of arrays and objects. The library copies, compares and writes values by recursion, so a
// text of nothing but brackets would overflow the stack. None of our files, nor Hugging Face's, nests deeper than 8.
inline constexpr int deepest_json = 64;

// Returns whether arrays and objects nest deeper than deepest_json, for callers that do not use parse_json.
bool nests_too_deeply(std::string_view json);

// Parses a text. The value is discarded (nlohmann's is_discarded) if the text is not JSON, nests too deeply, or has a
// number beyond the range of double precision. Does not throw.
nlohmann::json parse_json(std::string_view text);

// Returns whether some object of the text has a name twice. `parsed` is the text as the library reads it. If a name
// repeats, `parsed` has fewer names than the text, so counting names is enough.
bool repeats_names(std::string_view json, const nlohmann::json& parsed);

// Finds a name that occurs twice in one object. JSON allows this, and the library silently keeps the last value. If the
// text has a syntax error, only the part before the error is searched. The time is linear in the length of the text.
// (The library's parser with a callback is slower: it visits all siblings at the end of each object.)
std::optional<std::string> repeated_name(std::string_view json);

// Returns an integer, or nothing for any other value and for integers that do not fit into 64 signed bits.
std::optional<int64_t> integer_of(const nlohmann::json& value);

// Throws UserError unless `object` states this version of its format.
void check_version(const nlohmann::json& object, int64_t version);

// Writes a value on one line or, with `indent` >= 0, on several lines with `indent` blanks per level. Bytes that are
// not UTF-8, for which the library would throw, become U+FFFD, the replacement character.
template <class Json>
std::string json_text(const Json& value, int indent = -1) {
  return value.dump(indent, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

}  // namespace copus
