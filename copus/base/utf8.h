// UTF-8, read strictly.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace copus {

// Returns the bytes of the character at the beginning of a text that is not empty; 0 where that is no well-formed
// sequence (RFC 3629, section 4: no overlong forms, no surrogates, nothing above U+10FFFF).
std::size_t character_length(std::string_view text);

// Finds the offset of the first byte that does not begin a character, or nothing if all of `text` is
// well-formed.
std::optional<std::size_t> find_invalid_utf8(std::string_view text);

}  // namespace copus
