#include "copus/base/text/utf8.h"

#include <cstdint>
#include <cstring>

namespace copus {

std::size_t character_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const auto continues = [&](std::size_t i, unsigned low = 0x80, unsigned high = 0xBF) {
    return i < text.size() && byte(i) >= low && byte(i) <= high;
  };
  const unsigned lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return continues(1) ? 2 : 0;
  if (lead >= 0xE0 && lead <= 0xEF) {
    const unsigned low = lead == 0xE0 ? 0xA0 : 0x80;   // below: overlong
    const unsigned high = lead == 0xED ? 0x9F : 0xBF;  // above: surrogates
    return continues(1, low, high) && continues(2) ? 3 : 0;
  }
  if (lead >= 0xF0 && lead <= 0xF4) {
    const unsigned low = lead == 0xF0 ? 0x90 : 0x80;   // below: overlong
    const unsigned high = lead == 0xF4 ? 0x8F : 0xBF;  // above: beyond U+10FFFF
    return continues(1, low, high) && continues(2) && continues(3) ? 4 : 0;
  }
  return 0;
}

std::optional<std::size_t> find_invalid_utf8(std::string_view text) {
  constexpr uint64_t high_bits = 0x8080808080808080ULL;
  std::size_t position = 0;
  while (position < text.size()) {
    // Skips ASCII, the most common text, eight bytes at a time.
    uint64_t word = 0;
    if (position + sizeof(word) <= text.size()) {
      std::memcpy(&word, text.data() + position, sizeof(word));
      if ((word & high_bits) == 0) {
        position += sizeof(word);
        continue;
      }
    }
    const std::size_t length = character_length(text.substr(position));
    if (length == 0) return position;
    position += length;
  }
  return std::nullopt;
}

}  // namespace copus
