#include "copus/base/process/cpu_quota.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

namespace copus {

namespace {

constexpr double no_quota = std::numeric_limits<double>::infinity();

// Without a quota, version 2 writes "max", which does not parse as a number, and version 1 writes -1.
double quota_of_group(const std::filesystem::path& group) {
  double quota = 0, period = 0;
  if (!(std::ifstream(group / "cpu.max") >> quota >> period)) {
    std::ifstream(group / "cpu.cfs_quota_us") >> quota;
    std::ifstream(group / "cpu.cfs_period_us") >> period;
  }
  return quota > 0 && period > 0 ? quota / period : no_quota;
}

}  // namespace

std::optional<double> cpu_quota(const std::filesystem::path& root) {
  const std::filesystem::path mounts = root / "sys/fs/cgroup";
  double smallest = no_quota;
  // Each line is "number:controllers:/path"; version 2 names no controllers.
  std::ifstream groups(root / "proc/self/cgroup");
  for (std::string number, controllers, path;
       std::getline(groups, number, ':') && std::getline(groups, controllers, ':') && std::getline(groups, path);) {
    if (!controllers.empty() && (',' + controllers + ',').find(",cpu,") == std::string::npos) continue;
    const std::filesystem::path mount = controllers.empty() ? mounts : mounts / "cpu";
    // In a container, the mount itself may be the process's own group although `path` is still the host's path.
    for (std::filesystem::path group = std::filesystem::path(path).relative_path();; group = group.parent_path()) {
      smallest = std::min(smallest, quota_of_group(mount / group));
      if (group.empty()) break;
    }
  }
  return smallest < no_quota ? std::optional(smallest) : std::nullopt;
}

}  // namespace copus
