#include "copus/base/files/path_pattern.h"

#include <glob.h>

#include <algorithm>
#include <cerrno>

#include "copus/base/error.h"

namespace copus {

bool is_path_pattern(const std::string& path) { return path.find_first_of("*?[") != std::string::npos; }

std::vector<std::string> matching_paths(const std::string& pattern) {
  glob_t found{};
  // A folder that does not exist has no matches. A folder that cannot be read may have some, which is an error.
  const auto is_unreadable = [](const char* /*folder*/, int error) {
    return error != ENOENT && error != ENOTDIR ? 1 : 0;
  };
  const int status = ::glob(pattern.c_str(), GLOB_NOSORT, is_unreadable, &found);
  std::vector<std::string> paths;
  if (status == 0) paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  ::globfree(&found);
  if (status == GLOB_ABORTED)
    throw UserError(concat(pattern, ": a folder of this pattern cannot be read; make it readable, or leave it out"));
  COPUS_CHECK(status == 0 || status == GLOB_NOMATCH, pattern, ": ", status);
  std::ranges::sort(paths);  // by bytes; glob's own order depends on the locale
  return paths;
}

}  // namespace copus
