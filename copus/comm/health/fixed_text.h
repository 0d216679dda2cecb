// Text in a field of fixed size, for shared memory and for messages that are sent as raw memory.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <string_view>

namespace copus {

// The rest of the field is filled with zeros. A text that is too long is truncated.
template <size_t Bytes>
void write_text(std::array<char, Bytes>& to, std::string_view text) {
  to = {};
  std::copy_n(text.begin(), std::min(text.size(), Bytes - 1), to.begin());
}

template <size_t Bytes>
std::string read_text(const std::array<char, Bytes>& from) {
  return {from.begin(), std::find(from.begin(), from.end(), '\0')};
}

}  // namespace copus
