// Checks the resources that the operating system gives a process: cores, memory, limits, files, clock. The values to
// judge are arguments, so that tests can describe a bad machine.
#pragma once

#include <cstdint>
#include <ctime>
#include <filesystem>
#include <optional>
#include <vector>

#include "copus/workshop/doctor/finding.h"

namespace copus {

// `bound`: the number of cores on which this process may run. `usable`: how many of them Copus uses. `quota`: the cores
// that the process' control group allows. `threads`: default_threads() for one process on this machine.
Finding check_cores(int64_t bound, int64_t usable, std::optional<double> quota, int64_t threads);
// Bytes of memory and of address space that this process can still allocate.
Finding check_memory(int64_t available, int64_t address_space);
// `limit`: the largest limit that a process may set for itself. `ranks`: the number of ranks that Copus would start
// here.
Finding check_open_files(int64_t limit, int64_t ranks);
// Starts as many threads as `ranks` ranks with one computing thread each would have.
Finding check_threads(int64_t ranks);
// Writes, renames, locks and deletes files in the run directory, or in the folder where it would be made, and checks
// the free space.
Finding check_run_directory(const std::filesystem::path& directory);
// The folder for named shared memory (/dev/shm), which NCCL and MPI libraries use.
Finding check_shared_memory(const std::filesystem::path& folder);
// Starts two child processes. One maps and reads the memory of the other, as ranks do when the layout changes and after
// failures.
Finding check_peer_memory();
// `now`: seconds since 1970; `is_synchronized`: whether the kernel reports that a time server keeps the clock.
Finding check_clock(std::time_t now, bool is_synchronized);
bool is_clock_synchronized();
// Finds environment variables that make training slow, fail or not repeatable. Returns one finding for each of them, or
// a single finding if there are none.
std::vector<Finding> check_variables(int64_t cores);
// Whether another launcher has started this process as a rank, with all necessary variables.
Finding check_launcher();

}  // namespace copus
