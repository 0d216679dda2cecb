// The number of processor cores that this process may use.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "copus/base/range.h"

namespace copus {

// Counts the cores that this process may run on; a scheduler may have given it fewer than the machine has.
int64_t usable_cores();

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
