// The control groups (cgroups) of this process: they limit a container, a pod, a service or a SLURM job.
#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

namespace copus {

// Returns the folders of this process's control group and of the groups around it, in version 2 and in version 1 of the
// controller ("cpu", "memory"). Some of these folders may not exist. `root` is the folder that holds proc and sys.
std::vector<std::filesystem::path> control_groups(std::string_view controller, const std::filesystem::path& root);

}  // namespace copus
