#include "copus/base/process/available_memory.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

#include "copus/base/error.h"
#include "copus/base/text/units.h"

namespace copus {

namespace {

constexpr int64_t unlimited = std::numeric_limits<int64_t>::max();

int64_t available_in_system() {
  std::ifstream file("/proc/meminfo");
  std::string name, unit;
  for (int64_t kib = 0; file >> name >> kib && std::getline(file, unit);) {
    if (name == "MemAvailable:") return kib << 10;
  }
  return unlimited;
}

// Returns the bytes that remain in the control group that a container sees as its root (cgroup v2). Cached files and
// reclaimable kernel memory are treated as free, because the kernel can drop both.
int64_t available_in_container() {
  int64_t most = 0, used = 0, bytes = 0;
  if (!(std::ifstream("/sys/fs/cgroup/memory.max") >> most)) return unlimited;  // without a limit the file says "max"
  if (!(std::ifstream("/sys/fs/cgroup/memory.current") >> used)) return unlimited;
  std::ifstream statistics("/sys/fs/cgroup/memory.stat");
  for (std::string name; statistics >> name >> bytes;) {
    if (name == "inactive_file" || name == "active_file" || name == "slab_reclaimable") used -= bytes;
  }
  return std::max<int64_t>(0, most - used);
}

}  // namespace

int64_t available_address_space_bytes() {
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return unlimited;
  int64_t pages = 0;
  if (!(std::ifstream("/proc/self/statm") >> pages)) return unlimited;
  return std::max<int64_t>(0, static_cast<int64_t>(limit.rlim_cur) - pages * sysconf(_SC_PAGESIZE));
}

std::string lack_of_memory_message() {
  const int64_t address_space = available_address_space_bytes();
  return concat("there is not enough memory: ", format_bytes(static_cast<double>(available_memory_bytes())),
                " are left on this machine",
                address_space < unlimited ? concat(", and ", format_bytes(static_cast<double>(address_space)),
                                                   " to this process by its limit (ulimit -v)")
                                          : "",
                "; free memory or raise the limit, or ask for less: a smaller model, a smaller train.micro_batch, "
                "train.recompute = \"full\", more ranks on more machines");
}

int64_t available_memory_bytes() { return std::min(available_in_system(), available_in_container()); }

}  // namespace copus
