#include "copus/checkpoint/directory_lock.h"

#include <fcntl.h>
#include <unistd.h>

#include "copus/base/error.h"
#include "copus/base/files/regular_file.h"

namespace copus {

DirectoryLock::DirectoryLock(const std::filesystem::path& directory) : file_(directory / ".lock") {
  const OpenedFile file = open_regular_file(file_, O_RDWR | O_CREAT | O_NOFOLLOW);
  if (file.descriptor < 0) throw UserError(concat("cannot create ", file_.string(), ": ", file.error));
  descriptor_ = file.descriptor;
  // If a file system has no locks, the user must keep other processes away.
  if (!lock_as_writer(descriptor_)) {
    ::close(descriptor_);
    throw UserError(concat("another process is writing into ", directory.string(),
                           "; wait for that run to end, or use another run directory"));
  }
}

DirectoryLock::~DirectoryLock() { ::close(descriptor_); }

bool DirectoryLock::is_in_place() const { return is_file_at(descriptor_, file_); }

bool is_locked(const std::filesystem::path& directory) { return is_file_locked(directory / ".lock"); }

}  // namespace copus
