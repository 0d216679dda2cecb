// What the tests of this room share: a folder for one test, and a stand-in for a full disk.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace copus {

// A folder that is removed with its content after the test.
class TestDirectory : public testing::Test {
 protected:
  TestDirectory() {
    std::string name = (std::filesystem::temp_directory_path() / "copus-report-XXXXXX").string();
    directory_ = mkdtemp(name.data());
  }
  ~TestDirectory() override { std::filesystem::remove_all(directory_); }

  static std::string read(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    std::ostringstream content;
    content << file.rdbuf();
    return content.str();
  }
  static void write(const std::filesystem::path& path, const std::string& content) {
    std::ofstream(path, std::ios::binary) << content;
  }

  std::filesystem::path directory_;
};

// While it lives, no file of this process grows beyond `bytes`: the last write is cut short or refused, as on a full
// disk. For child processes of death tests, since it covers the test's own output too.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(size_t bytes) {
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() { setrlimit(RLIMIT_FSIZE, &before_); }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit before_{};
};

}  // namespace copus
