// Words of commands that a user may paste into a shell.
#pragma once

#include <string>
#include <string_view>

namespace copus {

// The text as one word of a POSIX shell, quoted where that is needed.
std::string shell_word(std::string_view text);

}  // namespace copus
