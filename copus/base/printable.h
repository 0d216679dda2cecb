// Text from files, as it may be shown on a terminal: a name can hold bytes that move the cursor, colour the screen or
// rename its window.
#pragma once

#include <string>
#include <string_view>

namespace copus {

// Returns the text with control characters, characters that turn the direction of writing, and bytes that are no UTF-8
// as escapes: "\x1b", "\u202e". Tabs stay. Lines stay too, since messages of ours have some, but the later ones begin
// with two spaces: no name can look like the beginning of another message.
std::string printable(std::string_view text);

// The same for a text that stands for itself, such as one that a model writes: its lines stay as they are.
std::string printable_lines(std::string_view text);

}  // namespace copus
