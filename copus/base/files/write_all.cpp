#include "copus/base/files/write_all.h"

#include <unistd.h>

#include <cerrno>

namespace copus {

size_t write_all(int descriptor, std::string_view text) {
  size_t written = 0;
  while (written < text.size()) {
    const ssize_t count = write(descriptor, text.data() + written, text.size() - written);
    if (count < 0 && errno != EINTR) break;
    if (count > 0) written += count;
  }
  return written;
}

}  // namespace copus
