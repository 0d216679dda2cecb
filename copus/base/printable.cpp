#include "copus/base/printable.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>

namespace copus {
namespace {

// A character at the beginning of a text; of no length where the text does not begin with UTF-8.
struct Character {
  uint32_t code = 0;
  size_t length = 0;
};

Character first_character(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text.front());
  if (lead < 0x80) return {lead, 1};
  const size_t length = lead >= 0xC2 && lead <= 0xDF   ? 2
                        : (lead & 0xF0) == 0xE0        ? 3
                        : lead >= 0xF0 && lead <= 0xF4 ? 4
                                                       : 0;
  if (length == 0 || text.size() < length) return {};
  uint32_t code = lead & (0x7FU >> length);
  for (const char byte : text.substr(1, length - 1)) {
    if ((static_cast<unsigned char>(byte) & 0xC0) != 0x80) return {};
    code = code << 6 | (static_cast<unsigned char>(byte) & 0x3F);
  }
  constexpr std::array<uint32_t, 5> smallest = {0, 0, 0x80, 0x800, 0x10000};  // by length: less would be overlong
  const bool is_surrogate = code >= 0xD800 && code <= 0xDFFF;
  if (code < smallest[length] || code > 0x10FFFF || is_surrogate) return {};
  return {code, length};
}

bool is_control(uint32_t code) { return code < 0x20 || (code >= 0x7F && code <= 0x9F); }

// Separators of lines and paragraphs, and what embeds, overrides or isolates a direction of writing.
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
    const Character first = first_character(text);
    if (first.code == '\n' && first.length == 1) {
      result += line_end;
    } else if (first.length == 0) {
      result += escape("\\x%02x", static_cast<unsigned char>(text.front()));
    } else if (is_control(first.code) && first.code != '\t') {
      result += escape("\\x%02x", first.code);
    } else if (turns_or_breaks_a_line(first.code)) {
      result += escape("\\u%04x", first.code);
    } else {
      result += text.substr(0, first.length);
    }
    text.remove_prefix(std::max<size_t>(first.length, 1));
  }
  return result;
}

}  // namespace

std::string printable(std::string_view text) { return escaped(text, "\n  "); }

std::string printable_lines(std::string_view text) { return escaped(text, "\n"); }

}  // namespace copus
