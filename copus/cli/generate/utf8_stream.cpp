#include "copus/cli/generate/utf8_stream.h"

namespace copus {

namespace {

constexpr const char* replacement = "\xEF\xBF\xBD";

}  // namespace

std::string Utf8Stream::add(uint8_t byte) {
  if (missing_ == 0) return begin_character(byte);
  if (byte < low_ || byte > high_) return finish() + begin_character(byte);
  pending_.push_back(static_cast<char>(byte));
  low_ = 0x80;
  high_ = 0xBF;
  if (--missing_ > 0) return "";
  std::string character;
  character.swap(pending_);
  return character;
}

std::string Utf8Stream::finish() {
  if (missing_ == 0) return "";
  missing_ = 0;
  pending_.clear();
  return replacement;
}

// Begins a character. Well-formed byte sequences are listed in Unicode 15, table 3-7.
std::string Utf8Stream::begin_character(uint8_t byte) {
  if (byte < 0x80) return {static_cast<char>(byte)};
  if (byte < 0xC2 || byte > 0xF4) return replacement;
  pending_.assign(1, static_cast<char>(byte));
  missing_ = byte < 0xE0 ? 1 : byte < 0xF0 ? 2 : 3;
  low_ = byte == 0xE0 ? 0xA0 : byte == 0xF0 ? 0x90 : 0x80;
  high_ = byte == 0xED ? 0x9F : byte == 0xF4 ? 0x8F : 0xBF;
  return "";
}

}  // namespace copus
