// A file's contents as read-only memory.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace copus {

struct WatchedFile;

// Maps a whole regular file for the lifetime of this object. Pages are read when they are first touched. If somebody
// truncates the file, the missing rest of its last page reads as zeros, and touching a missing page ends the process
// (see below). Linux allows 65,530 mappings per process, so once a process has many mappings, it copies small files
// instead.
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
  WatchedFile* watched_ = nullptr;  // tells the SIGBUS handler to which file a mapping belongs
  std::size_t size_ = 0;
};

// If this process reads from a mapped file that was truncated, makes it end with exit code 2 and a message that names
// the file, instead of a SIGBUS without a message. Any other SIGBUS has its previous effect.
void tell_of_files_cut_short();

}  // namespace copus
