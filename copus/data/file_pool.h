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

  // Returns the file, opened now if it is not open. Throws UserError as MappedFile does.
  std::shared_ptr<const MappedFile> open(const std::string& path);
  bool is_open(const std::string& path) const;

 private:
  struct Entry {
    std::shared_ptr<const MappedFile> file;
    uint64_t used = 0;
  };
  std::size_t capacity_;
  mutable std::mutex mutex_;
  uint64_t uses_ = 0;
  std::map<std::string, Entry> files_;
};

}  // namespace copus
