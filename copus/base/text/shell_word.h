// Words of shell commands that a user may paste.
#pragma once

#include <string>
#include <string_view>

namespace copus {

// Returns the text as one word of a POSIX shell, on one line and quoted if needed. A text with control characters
// becomes a command substitution that calls printf. A newline at the end is preserved, although command substitution
// drops it.
std::string shell_word(std::string_view text);

}  // namespace copus
