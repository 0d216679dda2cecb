// A lock on a folder, so that one process at a time writes into it.
#pragma once

#include <filesystem>

namespace copus {

// A lock that is held for the object's life, and no longer than the process's: the kernel releases it when the process
// dies.
class DirectoryLock {
 public:
  // Locks the file `.lock` in `directory`, which must exist. Throws UserError when another holder lives, and where
  // `.lock` is no file: a symbolic link is not followed.
  explicit DirectoryLock(const std::filesystem::path& directory);
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;
  ~DirectoryLock();

  // Tells whether the folder still is where it was: it may have been deleted, moved, or replaced by another one, on
  // which somebody else can have a lock.
  bool is_in_place() const;

 private:
  std::filesystem::path file_;
  int descriptor_ = -1;
};

// Tells whether a process that writes into `directory` holds the lock. False too where there is no such folder.
bool is_locked(const std::filesystem::path& directory);

}  // namespace copus
