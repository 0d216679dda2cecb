// Letters of ASCII, whatever the locale.
#pragma once

#include <string>

namespace copus {

// The text with 'A' to 'Z' as 'a' to 'z'; all else stays.
inline std::string lower_case(std::string text) {
  for (char& character : text) {
    if (character >= 'A' && character <= 'Z') character = static_cast<char>(character - 'A' + 'a');
  }
  return text;
}

}  // namespace copus
