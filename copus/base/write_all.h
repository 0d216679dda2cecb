// A write(2) that continues after interruptions and short writes.
#pragma once

#include <cstddef>
#include <string_view>

namespace copus {

// Writes the whole text, or as much as there is room for, and returns the number of bytes written. If that is less than
// the whole text, errno says why.
size_t write_all(int descriptor, std::string_view text);

}  // namespace copus
