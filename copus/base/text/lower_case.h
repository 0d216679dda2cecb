// Lower case for ASCII letters, in any locale.
#pragma once

#include <string>

namespace copus {

// Returns the text with 'A' to 'Z' replaced by 'a' to 'z'; all other bytes stay.
inline std::string lower_case(std::string text) {
  for (char& character : text) {
    if (character >= 'A' && character <= 'Z') character = static_cast<char>(character - 'A' + 'a');
  }
  return text;
}

}  // namespace copus
