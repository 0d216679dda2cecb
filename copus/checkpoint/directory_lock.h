// Locks a folder, so that only one process at a time writes into it.
#pragma once

#include <filesystem>

namespace copus {

// Locks a directory for the lifetime of the object. The kernel also releases the lock when the process dies.
class DirectoryLock {
 public:
  // Locks the file `.lock` in `directory`, which must exist. Throws UserError if another process holds the lock, or if
  // `.lock` is not a regular file; symbolic links are not followed.
  explicit DirectoryLock(const std::filesystem::path& directory);
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;
  ~DirectoryLock();

  // Returns whether the folder still exists under its path. It may have been deleted, moved, or replaced by another
  // folder, which another process could lock.
  bool is_in_place() const;

 private:
  std::filesystem::path file_;
  int descriptor_ = -1;
};

// Whether a process that writes into `directory` holds the lock. False if there is no such folder.
bool is_locked(const std::filesystem::path& directory);

}  // namespace copus
