// Words of shell commands that a user may paste.
#pragma once

#include <string>
#include <string_view>

namespace copus {

// Returns the text as one word of a POSIX shell on one line, quoted if needed. Control characters become a call of
// printf. A newline at the end is kept, although command substitution would drop it.
std::string shell_word(std::string_view text);

}  // namespace copus
