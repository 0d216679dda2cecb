// How many files a process of a job has open.
#pragma once

#include <cstdint>

namespace copus {

// The open files that suffice for a process which starts so many ranks, or is one: pipes, shared memory, logs and a
// checkpoint's files.
constexpr int64_t open_files_needed(int64_t ranks) {
  constexpr int64_t of_a_process = 32, of_each_rank = 8;
  return of_a_process + of_each_rank * ranks;
}

}  // namespace copus
