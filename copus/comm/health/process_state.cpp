#include "copus/comm/health/process_state.h"

#include <fstream>
#include <string>

#include "copus/base/error.h"

namespace copus {

ProcessState process_state(int64_t pid) {
  std::ifstream file(concat("/proc/", pid, "/stat"));
  std::string line;
  if (!std::getline(file, line)) return ProcessState::gone;
  // "pid (name) state ...", and the name may contain anything.
  const size_t name_end = line.rfind(") ");
  if (name_end == std::string::npos || name_end + 2 >= line.size()) return ProcessState::gone;
  switch (line[name_end + 2]) {
    case 'T':
      return ProcessState::stopped;
    case 'Z':
    case 'X':
      return ProcessState::gone;
    default:
      return ProcessState::running;
  }
}

}  // namespace copus
