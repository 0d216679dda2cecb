#include "copus/base/process/cpu_quota.h"

#include <algorithm>
#include <fstream>
#include <limits>

#include "copus/base/process/control_groups.h"

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
  double smallest = no_quota;
  for (const std::filesystem::path& group : control_groups("cpu", root)) {
    smallest = std::min(smallest, quota_of_group(group));
  }
  return smallest < no_quota ? std::optional(smallest) : std::nullopt;
}

}  // namespace copus
