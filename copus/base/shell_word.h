// Words of commands that a user may paste into a shell.
#pragma once

#include <string>
#include <string_view>

namespace copus {

// The text as one word of a POSIX shell, quoted where that is needed, and on one line: control characters are left to
// printf. A newline at its end stays one, which a shell would drop there.
std::string shell_word(std::string_view text);

}  // namespace copus
