#include "copus/base/shell_word.h"

#include <algorithm>

namespace copus {

namespace {

// A "~" or "=" may mean something to a shell at some places, so neither is among these.
bool needs_no_quotes(char letter) {
  constexpr std::string_view others = "_-./:,+@%";
  return (letter >= 'a' && letter <= 'z') || (letter >= 'A' && letter <= 'Z') || (letter >= '0' && letter <= '9') ||
         others.find(letter) != std::string_view::npos;
}

}  // namespace

std::string shell_word(std::string_view text) {
  if (!text.empty() && std::ranges::all_of(text, needs_no_quotes)) return std::string(text);
  std::string word = "'";
  for (const char letter : text) word += letter == '\'' ? std::string("'\\''") : std::string(1, letter);
  return word + "'";
}

}  // namespace copus
