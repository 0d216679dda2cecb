#include "copus/base/process/control_groups.h"

#include <fstream>
#include <string>

#include "copus/base/error.h"

namespace copus {

std::vector<std::filesystem::path> control_groups(std::string_view controller, const std::filesystem::path& root) {
  const std::filesystem::path mounts = root / "sys/fs/cgroup";
  std::vector<std::filesystem::path> groups;
  // Each line is "number:controllers:/path"; version 2 names no controllers.
  std::ifstream lines(root / "proc/self/cgroup");
  for (std::string number, controllers, path;
       std::getline(lines, number, ':') && std::getline(lines, controllers, ':') && std::getline(lines, path);) {
    if (!controllers.empty() && concat(",", controllers, ",").find(concat(",", controller, ",")) == std::string::npos) {
      continue;
    }
    const std::filesystem::path mount = controllers.empty() ? mounts : mounts / controller;
    // In a container, the mount itself may be the process's own group although `path` is still the host's path.
    for (std::filesystem::path group = std::filesystem::path(path).relative_path();; group = group.parent_path()) {
      groups.push_back(mount / group);
      if (group.empty()) break;
    }
  }
  return groups;
}

}  // namespace copus
