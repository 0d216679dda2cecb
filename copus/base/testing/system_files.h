// For tests: a folder that stands for the root of a machine's file system, with its files of proc and sys.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

#include "copus/base/testing/test_support.h"

namespace copus {

class SystemFiles {
 public:
  const std::filesystem::path& root() const { return folder_.path(); }
  void write(const std::string& file, const std::string& text) {
    const std::filesystem::path path = root() / file;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text << "\n";
  }

 private:
  TemporaryFolder folder_;
};

}  // namespace copus
