#include "copus/base/process/standard_descriptors.h"

#include <fcntl.h>
#include <unistd.h>

#include "copus/base/error.h"

namespace copus {

// Counts upwards: an opened file gets the lowest free descriptor, which is then the one that is closed.
void open_standard_descriptors() {
  for (int number = STDIN_FILENO; number <= STDERR_FILENO; ++number) {
    if (::fcntl(number, F_GETFD) >= 0) continue;
    const int mode = number == STDIN_FILENO ? O_RDONLY : O_WRONLY;
    if (::open("/dev/null", mode) >= 0) continue;
    ::open("/", O_PATH);  // if there is no null device: a descriptor whose reads and writes fail
  }
}

int checked_descriptor(int descriptor) {
  COPUS_CHECK(descriptor < 0 || descriptor > STDERR_FILENO, "a file of ours has the number ", descriptor);
  return descriptor;
}

}  // namespace copus
