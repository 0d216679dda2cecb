// A file's contents as read-only memory.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace copus {

// Maps a whole regular file for its lifetime; pages are read when they are first touched. A file that somebody cuts
// short meanwhile ends the process when a page is touched that is gone (see below); what is left of the page that it
// then ends in reads as zeros. A process may have 65,530 mappings (Linux), so where it has many a small file is copied.
class MappedFile {
 public:
  // Throws UserError if `path` is missing, not a regular file, or cannot be read.
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
  std::unique_ptr<std::byte[]> copy_;  // empty: the file is mapped
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

// From here on, a mapped file whose bytes are gone when they are read ends this process with a message that names it
// and exit code 2, where SIGBUS would have ended it. Any other SIGBUS does what it did before.
void tell_of_files_cut_short();

}  // namespace copus
