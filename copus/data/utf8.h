// Validation of UTF-8.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace copus {

// Finds the offset of the first byte that does not begin a well-formed UTF-8 sequence (RFC 3629: no overlong forms, no
// surrogates, nothing above U+10FFFF), or nothing if all of `text` is well-formed.
std::optional<std::size_t> find_invalid_utf8(std::string_view text);

}  // namespace copus
