// The number of processor cores that this process may use.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "copus/base/numbers/range.h"

namespace copus {

// Counts the cores that this process may run on. A scheduler may have bound it to fewer cores than the machine has.
int64_t cores_of_affinity();

// Returns the number of cores with which this process should compute: the smaller of its affinity and its quota
// (cpu_quota.h). A fractional quota is rounded up, because one thread on a quota of 1.5 cores would waste a third of
// the quota. `root` is the folder that contains proc and sys.
int64_t usable_cores(const std::filesystem::path& root = "/");

// Returns the default number of threads per process for a machine that runs `processes` processes: OMP_NUM_THREADS if
// set, otherwise the number of cores divided by `processes`.
int64_t default_threads(int64_t processes);

// The allowed numbers of threads; 0 stands for all cores. The upper end is far above the cores of any machine.
inline constexpr Range<int64_t> allowed_threads{0, int64_t{1} << 12};

// Checks that the system lets this process run `count` threads at the same time. OpenMP would end the process if it
// could not start its threads. Throws UserError that says what to do and which limit would suffice.
void require_threads(int64_t count);

// The message to the user if the system refuses to start another thread; it says what to do.
std::string_view lack_of_threads_message();

// The limit on processes and threads, in words: " under ulimit -u 70". Empty without a limit.
std::string under_process_limit();

}  // namespace copus
