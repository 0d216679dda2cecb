// Checks of what the operating system gives a process: cores, memory, limits, files, clock. What is judged is an
// argument, so that tests can state a bad machine.
#pragma once

#include <cstdint>
#include <ctime>
#include <filesystem>
#include <optional>
#include <vector>

#include "copus/workshop/doctor/finding.h"

namespace copus {

// The cores that this process may run on, how many of them Copus counts with, the quota of its control group, and the
// threads of a process that has them alone (default_threads).
Finding check_cores(int64_t bound, int64_t usable, std::optional<double> quota, int64_t threads);
// Bytes of memory and of address space that this process may still take.
Finding check_memory(int64_t available, int64_t address_space);
// The largest limit that a process may set itself, and the ranks that would start here.
Finding check_open_files(int64_t limit, int64_t ranks);
// Starts as many threads as so many ranks with one thread each have.
Finding check_threads(int64_t ranks);
// Writes, renames, locks and deletes files where a run directory is or would be, and looks at the space there.
Finding check_run_directory(const std::filesystem::path& directory);
// The folder for shared memory that has names (/dev/shm), which NCCL and MPI libraries use.
Finding check_shared_memory(const std::filesystem::path& folder);
// Lets one child process map and read memory of another one, as ranks do in changes of layout and after failures.
Finding check_peer_memory();
// `now` in seconds since 1970; whether the kernel says that a time server keeps the clock.
Finding check_clock(std::time_t now, bool is_synchronized);
bool is_clock_synchronized();
// Variables that make training slow, fail or not repeat; one finding for each, or a single one that there is none.
std::vector<Finding> check_variables(int64_t cores);
// Whether another launcher has started this process as a rank, and says so completely.
Finding check_launcher();

}  // namespace copus
