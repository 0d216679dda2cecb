// Helpers of tests: a folder that deletes itself, the text of an error, a stand-in for a full disk, another program.
#pragma once

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "copus/base/error.h"

namespace copus {

// Whether this build uses AddressSanitizer. It takes terabytes of address space, so tests cannot limit address space.
// They cannot limit descriptors either: builds with AddressSanitizer also use UndefinedBehaviorSanitizer, which takes
// some.
#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool under_address_sanitizer = true;
#elif defined(__has_feature)
inline constexpr bool under_address_sanitizer = __has_feature(address_sanitizer);
#else
inline constexpr bool under_address_sanitizer = false;
#endif

// An empty folder, deleted with its content by the destructor.
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

// Returns the names in a folder, sorted.
inline std::vector<std::string> list_directory(const std::filesystem::path& directory) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

// Returns the message of the UserError that `action` throws.
template <class Action>
std::string user_error(Action action) {
  try {
    action();
  } catch (const UserError& error) {
    return error.what();
  }
  return "no UserError";
}

// Returns JSON that nests so deeply that a recursive walk through its value overflows the stack.
inline std::string deep_json() {
  constexpr size_t depth = 100'000;
  return std::string(depth, '[') + std::string(depth, ']');
}

// While this object lives, files of this process cannot grow beyond `bytes`: the last write is truncated or refused, as
// on a full disk. Use it in child processes, because the limit covers the test's own output too.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    std::signal(SIGXFSZ, SIG_IGN);
    COPUS_CHECK(::getrlimit(RLIMIT_FSIZE, &before_) == 0);
    const rlimit limit{bytes, before_.rlim_max};
    COPUS_CHECK(::setrlimit(RLIMIT_FSIZE, &limit) == 0);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;
  ~FileSizeLimit() { ::setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_{};
};

struct ProcessResult {
  int exit_code;       // -1 if a signal ended the program
  std::string output;  // text of standard output
};

// Runs a program with its arguments, none of which may contain a single quote, and waits for its end.
inline ProcessResult run_process(const std::vector<std::string>& command) {
  std::string line;
  for (const std::string& part : command) line += concat(line.empty() ? "'" : " '", part, "'");
  FILE* pipe = ::popen(line.c_str(), "r");
  COPUS_CHECK(pipe != nullptr, line);
  ProcessResult result{-1, ""};
  char buffer[4096];
  for (size_t count; (count = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;) result.output.append(buffer, count);
  const int status = ::pclose(pipe);
  if (WIFEXITED(status)) result.exit_code = WEXITSTATUS(status);
  return result;
}

}  // namespace copus
