#include "copus/cli/run_directory.h"

#include <algorithm>
#include <system_error>
#include <vector>

#include "copus/base/error.h"

namespace copus {

namespace {

namespace fs = std::filesystem;

}  // namespace

std::string hint_at_runs_in(const fs::path& folder, const std::string& needed_file) {
  std::vector<std::string> runs;
  std::error_code unreadable;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, unreadable)) {
    if (fs::exists(entry.path() / needed_file, unreadable)) runs.push_back(entry.path().string());
  }
  if (runs.empty()) return "";
  const std::string last = *std::max_element(runs.begin(), runs.end());  // the latest: `copus train` names runs by date
  return concat(", which is a folder of ", runs.size(), runs.size() > 1 ? ": give one of them, such as " : ": give ",
                last);
}

std::string why_no_run(const fs::path& directory, const std::string& needed_file) {
  const std::string begin = concat("there is no run in ", directory.string());
  std::error_code unknown;
  if (!fs::exists(directory, unknown)) return concat(begin, " (no such folder)");
  if (!fs::is_directory(directory, unknown)) return concat(begin, " (it is a file)");
  const std::string folder = hint_at_runs_in(directory, needed_file);
  return folder.empty() ? concat(begin, " (no ", needed_file, ")") : begin + folder;
}

void check_is_run(const std::string& command, const fs::path& directory, const std::string& needed_file) {
  std::error_code unknown;
  if (fs::exists(directory / needed_file, unknown)) return;
  throw UserError(concat("copus ", command, ": ", why_no_run(directory, needed_file),
                         "; give a run directory, the one that `copus train` named (see 'copus ", command,
                         " --help')"));
}

}  // namespace copus
