#include "copus/base/cores.h"

#include <sched.h>

#include <algorithm>
#include <thread>

namespace copus {

int64_t usable_cores() {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  return sched_getaffinity(0, sizeof(cores), &cores) == 0 ? CPU_COUNT(&cores)
                                                          : std::max(1U, std::thread::hardware_concurrency());
}

}  // namespace copus
