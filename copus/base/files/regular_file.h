// Opens files only if they are regular files. Opening a named pipe, a device or a socket may block forever. Moreover,
// their bytes can be read only once, but several ranks and a resumed run read the same file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

namespace copus {

// The result of opening a file: a descriptor, which the caller closes, or the error.
struct OpenedFile {
  int descriptor = -1;
  int error_number = 0;    // of open(2)
  std::string error = {};  // in words
};

// Opens a file with these flags of open(2) and never blocks. Refuses everything but regular files.
OpenedFile open_regular_file(const std::filesystem::path& path, int flags);

// Why no file can be written at `path`, in words. Empty if `path` is a regular file or does not exist yet.
std::string obstacle_to_file(const std::filesystem::path& path);

// Returns whether `path` still names the open file. The file may have been deleted, moved or replaced. Returns true if
// the system cannot tell.
bool is_file_at(int descriptor, const std::filesystem::path& path);

// Returns whether a process holds the file locked (flock) as its only writer. Returns false if the file does not exist.
// Tries a shared lock and releases it at once, so a check blocks other processes only for a moment.
bool is_file_locked(const std::filesystem::path& path);

// Locks an open file, until it is closed, for this process as its only writer. Returns false if another process is the
// writer. A process that only checks the lock, as is_file_locked does, is not a writer. Returns true on file systems
// without locks.
bool lock_as_writer(int descriptor);

// A file that is read from its beginning.
class InputFile {
 public:
  // Throws UserError if the file is missing, cannot be read, or is not a regular file.
  explicit InputFile(std::filesystem::path path);
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;
  ~InputFile();

  // Bytes when the file was opened. 0 if the system generates the content on reading, as in /proc.
  uint64_t size() const { return size_; }
  // Continues reading `offset` bytes after the beginning.
  void skip_to(uint64_t offset);
  // Reads the next bytes into `buffer` and returns how many: at least one before the end, 0 at the end. Throws
  // UserError if the disk reports an error.
  size_t read(std::span<char> buffer);

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  uint64_t size_ = 0;
};

}  // namespace copus
