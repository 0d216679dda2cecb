#include "copus/base/text/shell_word.h"

#include <algorithm>

namespace copus {

namespace {

// Excludes "~" and "=", which are special to a shell in some positions.
bool needs_no_quotes(char letter) {
  constexpr std::string_view others = "_-./:,+@%";
  return (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') || (letter >= '0' && letter <= '9') ||
         others.find(letter) != std::string_view::npos;
}

bool needs_printf(char letter) { return (letter >= 0 && letter < ' ') || letter == '\x7f'; }

std::string in_quotes(std::string_view text) {
  std::string word = "'";
  for (const char letter : text) word += letter == '\'' ? std::string("'\\''") : std::string(1, letter);
  return word + "'";
}

// The text as a format for printf, with control characters escaped.
std::string format_of(std::string_view text) {
  std::string format;
  for (const char letter : text) {
    const auto octal = [&](int bits) { return static_cast<char>('0' + ((letter >> bits) & 7)); };
    if (needs_printf(letter)) {
      format += {'\\', octal(6), octal(3), octal(0)};
    } else {
      if (letter == '\\' || letter == '%') format += letter;
      format += letter;
    }
  }
  return format;
}

}  // namespace

std::string shell_word(std::string_view text) {
  if (!text.empty() && std::ranges::all_of(text, needs_no_quotes)) return std::string(text);
  if (std::ranges::none_of(text, needs_printf) || text.ends_with('\n')) return in_quotes(text);
  return "\"$(printf -- " + in_quotes(format_of(text)) + ")\"";
}

}  // namespace copus
