// A new temporary folder, which is removed with this object unless keep() was called.
#pragma once

#include <stdlib.h>  // mkdtemp, which <cstdlib> need not declare

#include <filesystem>
#include <string>
#include <system_error>

#include "copus/base/error.h"

namespace copus {

class TemporaryFolder {
 public:
  // Throws UserError if no folder can be made in `parent`.
  explicit TemporaryFolder(const std::filesystem::path& parent) {
    std::string pattern = (parent / "copus-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) throw UserError(concat("cannot make a folder in ", parent.string()));
    path_ = pattern;
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    if (!keep_) std::filesystem::remove_all(path_, ignored);
  }
  void keep() { keep_ = true; }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  bool keep_ = false;
};

}  // namespace copus
