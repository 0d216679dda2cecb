#include "copus/base/process/available_memory.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>

#include "copus/base/error.h"
#include "copus/base/process/control_groups.h"
#include "copus/base/text/units.h"

namespace copus {

namespace {

constexpr int64_t unlimited = std::numeric_limits<int64_t>::max();

int64_t available_in_system(const std::filesystem::path& root) {
  std::ifstream file(root / "proc/meminfo");
  std::string name, unit;
  for (int64_t kib = 0; file >> name >> kib && std::getline(file, unit);) {
    if (name == "MemAvailable:") return kib << 10;
  }
  return unlimited;
}

// Returns the limit of a control group. Version 2 writes "max" without a limit, which does not parse, and version 1 a
// number beyond any memory.
int64_t limit_of_group(const std::filesystem::path& group) {
  int64_t limit = 0;
  if (std::ifstream(group / "memory.max") >> limit) return limit;
  if (std::ifstream(group / "memory.limit_in_bytes") >> limit) return limit;
  return unlimited;
}

// Returns the bytes that remain under the limit. Cached files and reclaimable kernel memory are treated as free,
// because the kernel can drop both.
int64_t available_in_group(const std::filesystem::path& group) {
  const int64_t limit = limit_of_group(group);
  int64_t used = 0, bytes = 0;
  if (limit == unlimited) return unlimited;
  if (!(std::ifstream(group / "memory.current") >> used) && !(std::ifstream(group / "memory.usage_in_bytes") >> used)) {
    return unlimited;
  }
  // In version 1, only the total_ fields include the groups within this one, as its usage does.
  const std::string prefix = std::filesystem::exists(group / "memory.current") ? "" : "total_";
  std::ifstream statistics(group / "memory.stat");
  for (std::string name; statistics >> name >> bytes;) {
    for (const char* const reclaimable : {"inactive_file", "active_file", "slab_reclaimable"}) {
      if (name == prefix + reclaimable) used -= bytes;
    }
  }
  return std::max<int64_t>(0, limit - used);
}

// Returns the smallest value of any memory control group of this process.
template <class Value>
int64_t smallest_of_groups(const std::filesystem::path& root, const Value& value) {
  int64_t smallest = unlimited;
  for (const std::filesystem::path& group : control_groups("memory", root)) smallest = std::min(smallest, value(group));
  return smallest;
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

int64_t available_memory_bytes(const std::filesystem::path& root) {
  return std::min(available_in_system(root), smallest_of_groups(root, available_in_group));
}

int64_t usable_memory_bytes(const std::filesystem::path& root) {
  const auto physical = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  return std::min(physical, smallest_of_groups(root, limit_of_group));
}

}  // namespace copus
