// The processor time that control groups (cgroups) grant: the limit of a container, a pod or a service.
#pragma once

#include <filesystem>
#include <optional>

namespace copus {

// Returns the smallest CPU quota of this process's control group and the groups around it, in cores (1.5 means 1.5
// seconds of processor time per second). Returns nothing without a quota. Reads both versions of control groups. `root`
// is the folder that holds proc and sys.
std::optional<double> cpu_quota(const std::filesystem::path& root = "/");

}  // namespace copus
