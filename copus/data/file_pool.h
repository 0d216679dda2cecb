// Mapped files that are opened when they are read, of which only the latest stay open.
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
  // Keeps at most `capacity` files open that nobody reads, at least one.
  explicit FilePool(std::size_t capacity);

  // Keeps at least this many files open from now on.
  void reserve(std::size_t capacity);

  // Returns the file, opened now if it is not open. Throws UserError as MappedFile does, and for a file of another size
  // than `bytes`.
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
