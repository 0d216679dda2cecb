// How many files a process of a job has open.
#pragma once

#include <cstdint>

namespace copus {

// Returns a number of open files that suffices for a process that starts `ranks` ranks or is one of them. It covers
// pipes, shared memory, logs and the files of a checkpoint.
constexpr int64_t open_files_needed(int64_t ranks) {
  constexpr int64_t of_a_process = 32, of_each_rank = 8;
  return of_a_process + of_each_rank * ranks;
}

}  // namespace copus
