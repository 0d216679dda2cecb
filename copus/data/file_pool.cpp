#include "copus/data/file_pool.h"

#include <algorithm>

#include "copus/base/error.h"

namespace copus {

FilePool::FilePool(std::size_t capacity) : capacity_(capacity) { COPUS_CHECK(capacity >= 1); }

void FilePool::reserve(std::size_t capacity) {
  const std::lock_guard lock(mutex_);
  capacity_ = std::max(capacity_, capacity);
}

std::shared_ptr<const MappedFile> FilePool::open(const std::string& path, std::size_t bytes) {
  if (auto file = find(path)) return file;
  const std::lock_guard lock(mutex_);
  auto file = std::make_shared<const MappedFile>(path);
  if (file->bytes().size() != bytes) {
    throw UserError(concat(path, " has ", file->bytes().size(), " bytes, and ", bytes, " were expected"));
  }
  while (files_.size() >= capacity_) {
    files_.erase(std::ranges::min_element(files_, {}, [](const auto& entry) { return entry.second.used; }));
  }
  files_.insert_or_assign(path, Entry{file, ++uses_});
  return file;
}

std::shared_ptr<const MappedFile> FilePool::find(const std::string& path) {
  const std::lock_guard lock(mutex_);
  const auto found = files_.find(path);
  if (found == files_.end()) return nullptr;
  found->second.used = ++uses_;
  return found->second.file;
}

}  // namespace copus
