// Files that are opened only where they are files: a named pipe, a device or a socket may let whoever opens it wait for
// ever, and gives its bytes once, while several ranks and a resumed run read the same file again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace copus {

// What came of opening a file: a descriptor, which the caller closes, or why there is none.
struct OpenedFile {
  int descriptor = -1;
  int error_number = 0;    // of open(2)
  std::string error = {};  // in words
};

// Opens a file with these flags of open(2), without ever waiting. Refuses what is no regular file.
OpenedFile open_regular_file(const std::filesystem::path& path, int flags);

// Why no file can be written at `path`, in words; empty where there is a file already, or nothing.
std::string obstacle_to_file(const std::filesystem::path& path);

// Tells whether `path` names the open file, which may have been deleted, moved or replaced meanwhile. True too where
// the system cannot tell.
bool is_file_at(int descriptor, const std::filesystem::path& path);

// Tells whether a process holds the file locked (flock) as its only writer. False too where there is no such file.
// Tries a shared lock and releases it at once, so that the question blocks nobody for longer than a moment.
bool is_file_locked(const std::filesystem::path& path);

// Locks an open file as its only writer, until it is closed. Returns false where another process has; one that only
// asks by is_file_locked, or likewise, keeps nobody out. True too where the file system has no locks.
bool lock_as_writer(int descriptor);

// A file that is read from its beginning.
class InputFile {
 public:
  // Throws UserError where the file is missing, cannot be read, or is none.
  explicit InputFile(std::filesystem::path path);
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;
  ~InputFile();

  // Bytes when it was opened; 0 too where the system makes the content up when it is read, as in /proc.
  uint64_t size() const { return size_; }
  // Goes on reading `offset` bytes behind the beginning.
  void skip_to(uint64_t offset);
  // Reads the next bytes into `buffer`, at least one where there are any, and returns how many; 0 at the end. Throws
  // UserError where the disk reports an error.
  size_t read(std::span<char> buffer);

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  uint64_t size_ = 0;
};

}  // namespace copus
