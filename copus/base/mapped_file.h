// A file's contents as read-only memory.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace copus {

// Maps a whole regular file for its lifetime; pages are read when they are first touched. The file must not be
// truncated meanwhile.
class MappedFile {
 public:
  // Throws UserError if `path` is missing, a directory, not a regular file, or cannot be read.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const { return path_; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }  // empty for an empty file

 private:
  std::string path_;
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace copus
