#include "copus/comm/health/process_state.h"

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <system_error>

#include "copus/base/error.h"

namespace copus {

namespace {

// The letter for the state of a process or thread from its file "stat"; empty if it is gone.
std::optional<char> state_letter(const std::string& stat) {
  std::ifstream file(stat);
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  // "pid (name) state ...", and the name may contain anything.
  const size_t name_end = line.rfind(") ");
  if (name_end == std::string::npos || name_end + 2 >= line.size()) return std::nullopt;
  return line[name_end + 2];
}

}  // namespace

ProcessState process_state(int64_t pid) {
  switch (state_letter(concat("/proc/", pid, "/stat")).value_or('X')) {
    case 'T':
      return ProcessState::stopped;
    case 'Z':
    case 'X':
      return ProcessState::gone;
    default:
      return ProcessState::running;
  }
}

bool has_runnable_thread(int64_t pid) {
  std::error_code error;
  std::filesystem::directory_iterator thread(concat("/proc/", pid, "/task"), error);
  for (; !error && thread != std::filesystem::directory_iterator(); thread.increment(error)) {
    if (state_letter((thread->path() / "stat").string()) == 'R') return true;
  }
  return false;
}

}  // namespace copus
