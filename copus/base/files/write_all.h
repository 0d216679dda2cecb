// A write(2) that continues after interruptions and short writes.
#pragma once

#include <cstddef>
#include <string_view>

namespace copus {

// Writes the whole text, or as much as fits, and returns the number of bytes written. If that is less than the whole
// text, errno gives the reason.
size_t write_all(int descriptor, std::string_view text);

}  // namespace copus
