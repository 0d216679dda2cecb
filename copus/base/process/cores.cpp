#include "copus/base/process/cores.h"

#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "copus/base/error.h"
#include "copus/base/process/cpu_quota.h"

namespace copus {

int64_t cores_of_affinity() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  return sched_getaffinity(0, sizeof(cores), &cores) == 0 ? CPU_COUNT(&cores)
                                                          : std::max(1U, std::thread::hardware_concurrency());
}

int64_t usable_cores(const std::filesystem::path& root) {
  const int64_t cores = cores_of_affinity();
  const std::optional<double> quota = cpu_quota(root);
  return quota && *quota < static_cast<double>(cores) ? static_cast<int64_t>(std::ceil(*quota)) : cores;
}

int64_t default_threads(int64_t processes) {
  const char* const variable = std::getenv("OMP_NUM_THREADS");
  const std::string_view text = variable == nullptr ? "" : variable;
  int64_t threads = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), threads);
  const bool is_number = error == std::errc() && (end == text.data() + text.size() ||
                                                  *end == ',');  // a list has one number per level of nesting
  if (is_number && threads > 0 && allowed_threads.contains(threads)) return threads;
  return std::max<int64_t>(1, usable_cores() / processes);
}

std::string_view lack_of_threads_message() {
  return "the system lets this process start no further thread (Resource temporarily unavailable): raise the limit of "
         "processes and threads (ulimit -u, or pids.max of a container) or of memory (ulimit -v), or ask for fewer "
         "(train.threads, --threads, or fewer ranks on this machine)";
}

void require_threads(int64_t count) {
  std::mutex all_are_there;
  std::vector<std::thread> others;
  bool are_there = true;
  {
    const std::lock_guard wait(all_are_there);
    try {
      while (std::ssize(others) < count - 1) others.emplace_back([&] { const std::lock_guard leave(all_are_there); });
    } catch (const std::system_error&) {
      are_there = false;
    }
  }
  const int64_t most = std::ssize(others) + 1;
  for (std::thread& other : others) other.join();
  if (are_there) return;
  rlimit limit{};
  const bool is_limited = ::getrlimit(RLIMIT_NPROC, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  const std::string would_do =
      is_limited ? concat(", where ", static_cast<int64_t>(limit.rlim_cur) + count - most, " would do") : "";
  throw UserError(concat(count, " threads are needed, and there can be ", most, under_process_limit(), would_do, ": ",
                         lack_of_threads_message()));
}

std::string under_process_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NPROC, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return "";
  return concat(" under ulimit -u ", limit.rlim_cur);
}

}  // namespace copus
