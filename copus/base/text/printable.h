// Makes text from files safe for a terminal. A name in a file can hold bytes that move the cursor, colour the screen or
// rename the window.
#pragma once

#include <string>
#include <string_view>

namespace copus {

// Returns the text with control characters, characters that change the writing direction, and invalid UTF-8 as escapes:
// "\x1b", "\u202e". Tabs and line breaks stay, because some of our messages have several lines. Lines after the first
// are indented by two spaces, so that a name in a file cannot look like the beginning of another message.
std::string printable(std::string_view text);

// The same for text that is printed on lines of its own, such as a model's output: its lines are not indented.
std::string printable_lines(std::string_view text);

}  // namespace copus
