// What tests about files share: a folder that goes away, the text of an error, and a stand-in for a full disk.
#pragma once

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "copus/base/error.h"

namespace copus {

// An empty folder, deleted with its content at the end of its life.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "copus-test-XXXXXX").string();
    COPUS_CHECK(::mkdtemp(name.data()) != nullptr, name);
    path_ = name;
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// The names in a folder, sorted.
inline std::vector<std::string> list_directory(const std::filesystem::path& directory) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

// The message of the UserError that `action` throws.
template <class Action>
std::string user_error(Action action) {
  try {
    action();
  } catch (const UserError& error) {
    return error.what();
  }
  return "no UserError";
}

// From now on write() fails in the middle of files larger than this, as it does on a full disk. Belongs to the process
// and cannot be undone: for child processes.
inline void limit_file_size(rlim_t bytes) {
  std::signal(SIGXFSZ, SIG_IGN);
  const rlimit limit{bytes, bytes};
  COPUS_CHECK(::setrlimit(RLIMIT_FSIZE, &limit) == 0);
}

}  // namespace copus
