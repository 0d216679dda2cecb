// JSON as text: what others write may hold anything, and what is written may hold names, paths and cells of files that
// are not UTF-8, of which JSON consists. Whoever includes this links the JSON library.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace copus {

// How many arrays and objects may stand within one another. The library copies, compares and writes values by
// recursion, so that a text of nothing but brackets would overflow the stack. Nothing of ours or of Hugging Face's
// nests deeper than 8.
inline constexpr int deepest_json = 64;

// Tells whether arrays and objects nest deeper than deepest_json, for those who parse by rules of their own.
bool nests_too_deeply(std::string_view json);

// Parses a text. The value is discarded (nlohmann's is_discarded: neither object nor array nor anything else) where the
// text is no JSON, nests too deeply, or has a number beyond the range of double precision. Throws nothing.
nlohmann::json parse_json(std::string_view text);

// Tells whether an object of a text has a name twice: `parsed`, what the library made of it, then has fewer than the
// text.
bool repeats_names(std::string_view json, const nlohmann::json& parsed);

// Finds a name that an object of the text has twice, which JSON allows and the library settles silently: the last value
// wins. Returns the first such name up to where the text stops being JSON. Takes time in proportion to the text; the
// library's parser with a callback does not, as it goes through all siblings at the end of each object.
std::optional<std::string> repeated_name(std::string_view json);

// Returns an integer; nothing for any other value, and for one that does not fit into 64 bits with a sign.
std::optional<int64_t> integer_of(const nlohmann::json& value);

// Throws UserError unless `object` says that it is of this version of its format.
void check_version(const nlohmann::json& object, int64_t version);

// Writes a value in one line or, with `indent` >= 0, in several, indented by so many blanks a level. Bytes that are not
// UTF-8, at which the library would throw, become U+FFFD, the sign for what cannot be shown.
template <class Json>
std::string json_text(const Json& value, int indent = -1) {
  return value.dump(indent, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

}  // namespace copus
