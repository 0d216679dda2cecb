#include "copus/base/files/write_error.h"

#include <sys/resource.h>

#include <cerrno>
#include <csignal>
#include <system_error>

namespace copus {

std::string write_error_text(int error_number, uint64_t file_bytes, const std::filesystem::path& path) {
  std::string text = std::generic_category().message(error_number);
  if (error_number != ENOSPC && error_number != EDQUOT && error_number != EFBIG) return text;
  text += concat("; the file needs ", file_bytes, " bytes");
  if (error_number == EFBIG) {
    rlimit limit{};
    const bool is_limited = ::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < file_bytes;
    if (!is_limited) return text + ", more than the file system allows; choose another folder";
    return text + concat(", and files of this process may have ", limit.rlim_cur, " (ulimit -f): raise that limit");
  }
  const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
  std::error_code ignored;
  const std::filesystem::space_info space = std::filesystem::space(folder, ignored);
  if (!ignored) text += concat(", ", space.available, " are free in ", folder.string());
  if (error_number == EDQUOT) return text + "; your quota there is used up: delete files, or choose another folder";
  return text + "; free some space there or choose another folder";
}

void report_file_size_limit() { std::signal(SIGXFSZ, SIG_IGN); }

}  // namespace copus
