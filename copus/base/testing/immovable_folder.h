// For tests: a folder that cannot be renamed, and so not deleted either. Permissions would not stop root. Include this
// file in one source of a program, because it replaces the C library's rename().
#pragma once

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <string>

namespace copus {

// The folder cannot be renamed as long as this object lives.
class ImmovableFolder {
 public:
  explicit ImmovableFolder(const std::filesystem::path& path) { path_ = path.string(); }
  ImmovableFolder(const ImmovableFolder&) = delete;
  ImmovableFolder& operator=(const ImmovableFolder&) = delete;
  ~ImmovableFolder() { path_.clear(); }
  static const std::string& path() { return path_; }

 private:
  static inline std::string path_;
};

}  // namespace copus

extern "C" int rename(const char* old, const char* new_name) noexcept {
  if (old == copus::ImmovableFolder::path()) {
    errno = EACCES;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_renameat2, AT_FDCWD, old, AT_FDCWD, new_name, 0));
}
