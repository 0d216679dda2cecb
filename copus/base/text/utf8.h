// UTF-8, read strictly.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace copus {

// Returns the length in bytes of the first character of a text, or 0 if the text does not begin with a well-formed
// sequence (RFC 3629, section 4: no overlong forms, no surrogates, nothing above U+10FFFF). The text must not be empty.
std::size_t character_length(std::string_view text);

// Returns the offset of the first byte that does not begin a character, or nothing if all of `text` is well-formed.
std::optional<std::size_t> find_invalid_utf8(std::string_view text);

}  // namespace copus
