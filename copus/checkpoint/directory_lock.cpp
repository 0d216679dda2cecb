#include "copus/checkpoint/directory_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "copus/base/error.h"

namespace copus {

DirectoryLock::DirectoryLock(const std::filesystem::path& directory) {
  const std::filesystem::path file = directory / ".lock";
  descriptor_ = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (descriptor_ < 0) {
    throw UserError(concat("cannot create ", file.string(), ": ", std::generic_category().message(errno)));
  }
  // File systems without locks answer with other errors; there the user has to keep other processes away.
  if (::flock(descriptor_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    ::close(descriptor_);
    throw UserError(concat("another process is writing into ", directory.string(),
                           "; wait for that run to end, or use another run directory"));
  }
}

DirectoryLock::~DirectoryLock() { ::close(descriptor_); }

// Tries a shared lock and releases it at once, so that the question blocks nobody for longer than a moment.
bool is_locked(const std::filesystem::path& directory) {
  const int descriptor = ::open((directory / ".lock").c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return false;
  const bool locked = ::flock(descriptor, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  ::close(descriptor);
  return locked;
}

}  // namespace copus
