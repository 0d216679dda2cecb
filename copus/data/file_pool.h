// A cache of memory-mapped files. Files are opened on first use, and the least recently used ones are closed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "copus/base/files/mapped_file.h"

namespace copus {

// Thread-safe.
class FilePool {
 public:
  // Caches at most `capacity` (>= 1) open files. An evicted file stays open while a caller holds it.
  explicit FilePool(std::size_t capacity);

  // Raises the capacity to at least this number.
  void reserve(std::size_t capacity);

  // Returns the file, and opens it first if necessary. Throws UserError as MappedFile does, or if the file's size is
  // not `bytes`.
  std::shared_ptr<const MappedFile> open(const std::string& path, std::size_t bytes);
  // Returns the file if it is open, otherwise null. A deleted file stays readable while it is open.
  std::shared_ptr<const MappedFile> find(const std::string& path);

 private:
  struct Entry {
    std::shared_ptr<const MappedFile> file;
    uint64_t used = 0;
  };
  std::size_t capacity_;
  std::mutex mutex_;
  uint64_t uses_ = 0;
  std::map<std::string, Entry> files_;
};

}  // namespace copus
