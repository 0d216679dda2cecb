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

// `bound`: cores on which this process may run. `usable`: how many of these cores Copus uses. `quota`: the cores that
// the process' control group allows. `threads`: threads of a process that has the cores to itself (default_threads).
Finding check_cores(int64_t bound, int64_t usable, std::optional<double> quota, int64_t threads);
// Bytes of memory and of address space that this process can still allocate.
Finding check_memory(int64_t available, int64_t address_space);
// `limit`: the largest limit that a process may set for itself; `ranks`: the number of ranks that would start here.
Finding check_open_files(int64_t limit, int64_t ranks);
// Starts as many threads as `ranks` ranks with one computing thread each would have.
Finding check_threads(int64_t ranks);
// Writes, renames, locks and deletes files in the run directory, or where it would be made, and checks the free space.
Finding check_run_directory(const std::filesystem::path& directory);
// The folder for named shared memory (/dev/shm), which NCCL and MPI libraries use.
Finding check_shared_memory(const std::filesystem::path& folder);
// Lets one child process map and read the memory of another, as ranks do in changes of layout and after failures.
Finding check_peer_memory();
// `now`: seconds since 1970; `is_synchronized`: whether the kernel reports that a time server keeps the clock.
Finding check_clock(std::time_t now, bool is_synchronized);
bool is_clock_synchronized();
// Variables that make training slow, fail or not repeatable: one finding for each, or a single one if there is none.
std::vector<Finding> check_variables(int64_t cores);
// Whether another launcher has started this process as a rank, with all necessary variables.
Finding check_launcher();

}  // namespace copus
