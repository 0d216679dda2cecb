// The number of processor cores that this process may use.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "copus/base/range.h"

namespace copus {

// Counts the cores that this process may run on; a scheduler may have bound it to fewer than the machine has.
int64_t cores_of_affinity();

// Counts the cores that this process may compute with: the smaller of its affinity and its quota (cpu_quota.h). A quota
// is rounded up: of 1.5 cores, two threads use all, and one thread leaves a third. `root` is the folder that holds proc
// and sys.
int64_t usable_cores(const std::filesystem::path& root = "/");

// The threads that one of `processes` on this machine computes with where nobody says how many: as OMP_NUM_THREADS
// says, or else its part of the cores.
int64_t default_threads(int64_t processes);

// What a number of threads may be; 0 stands for all cores. No machine has nearly as many cores.
inline constexpr Range<int64_t> allowed_threads{0, int64_t{1} << 12};

// Checks that the system lets this process have so many threads at a time, and its user: OpenMP, which computes with
// them, ends the process where it does not. Throws UserError that says what to do, and which limit would do.
void require_threads(int64_t count);

// Tells a user to whom the system gives no further thread what to do.
std::string_view lack_of_threads_message();

// Names the limit on processes and threads: " under ulimit -u 70". Empty without that limit.
std::string under_process_limit();

}  // namespace copus
