#include "copus/base/text/printable.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>

#include "copus/base/text/utf8.h"

namespace copus {
namespace {

// Returns the code point of a text of one character.
uint32_t code_of(std::string_view character) {
  uint32_t code = static_cast<unsigned char>(character.front());
  if (character.size() > 1) code &= 0x7FU >> character.size();
  for (const char byte : character.substr(1)) code = code << 6 | (static_cast<unsigned char>(byte) & 0x3F);
  return code;
}

bool is_control(uint32_t code) { return code < 0x20 || (code >= 0x7F && code <= 0x9F); }

// Line and paragraph separators, and characters that embed, override or isolate a writing direction.
bool turns_or_breaks_a_line(uint32_t code) {
  return code == 0x061C || code == 0x200E || code == 0x200F || (code >= 0x2028 && code <= 0x202E) ||
         (code >= 0x2066 && code <= 0x2069);
}

std::string escape(const char* format, uint32_t value) {
  std::array<char, 16> text{};
  std::snprintf(text.data(), text.size(), format, static_cast<unsigned>(value));
  return text.data();
}

std::string escaped(std::string_view text, std::string_view line_end) {
  std::string result;
  while (!text.empty()) {
    const size_t length = character_length(text);
    const std::string_view character = text.substr(0, length);
    const uint32_t code = length == 0 ? 0 : code_of(character);
    if (length == 0) {
      result += escape("\\x%02x", static_cast<unsigned char>(text.front()));
    } else if (code == '\n') {
      result += line_end;
    } else if (is_control(code) && code != '\t') {
      result += escape("\\x%02x", code);
    } else if (turns_or_breaks_a_line(code)) {
      result += escape("\\u%04x", code);
    } else {
      result += character;
    }
    text.remove_prefix(std::max<size_t>(length, 1));
  }
  return result;
}

}  // namespace

std::string printable(std::string_view text) { return escaped(text, "\n  "); }

std::string printable_lines(std::string_view text) { return escaped(text, "\n"); }

}  // namespace copus
