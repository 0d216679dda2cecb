// Reads the JSON of files and messages, which others write and which may hold anything.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
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

// Returns an integer; nothing for any other value, and for one that does not fit into 64 bits with a sign.
std::optional<int64_t> integer_of(const nlohmann::json& value);

}  // namespace copus
