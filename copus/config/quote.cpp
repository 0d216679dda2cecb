#include "copus/config/quote.h"

#include <array>
#include <charconv>

#include "copus/base/error.h"

namespace copus {

std::string quote(std::string_view text) {
  constexpr std::string_view hexadecimal = "0123456789abcdef";
  std::string result = "\"";
  for (const char character : text) {
    const auto byte = static_cast<unsigned char>(character);
    if (character == '"' || character == '\\') {
      result += {'\\', character};
    } else if (character == '\n') {
      result += "\\n";
    } else if (character == '\t') {
      result += "\\t";
    } else if (byte < 0x20 || byte == 0x7f) {  // TOML allows no control character as it is
      result += concat("\\u00", hexadecimal[byte >> 4], hexadecimal[byte & 15]);
    } else {
      result += character;
    }
  }
  return result + "\"";
}

std::string write_number(double number) {
  std::array<char, 32> buffer;  // the longest, -2.2250738585072014e-308, has 24 characters
  const auto [end, error] = std::to_chars(buffer.data(), buffer.data() + buffer.size(), number);
  COPUS_CHECK(error == std::errc(), "a double that needs more than 32 characters");
  std::string text(buffer.data(), end);
  if (text.find_first_of(".enf") == std::string::npos) text += ".0";  // "3" would be a TOML integer
  return text;
}

}  // namespace copus
