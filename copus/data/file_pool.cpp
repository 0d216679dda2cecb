#include "copus/data/file_pool.h"

#include <algorithm>

#include "copus/base/error.h"

namespace copus {

FilePool::FilePool(std::size_t capacity) : capacity_(capacity) { COPUS_CHECK(capacity >= 1); }

std::shared_ptr<const MappedFile> FilePool::open(const std::string& path) {
  const std::lock_guard lock(mutex_);
  const auto found = files_.find(path);
  if (found != files_.end()) {
    found->second.used = ++uses_;
    return found->second.file;
  }
  auto file = std::make_shared<const MappedFile>(path);
  if (files_.size() == capacity_) {
    files_.erase(std::ranges::min_element(files_, {}, [](const auto& entry) { return entry.second.used; }));
  }
  files_.emplace(path, Entry{file, ++uses_});
  return file;
}

bool FilePool::is_open(const std::string& path) const {
  const std::lock_guard lock(mutex_);
  return files_.contains(path);
}

}  // namespace copus
