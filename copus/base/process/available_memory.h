// The amount of memory that this process could take.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace copus {

// Returns the free memory in bytes: the system's estimate (MemAvailable) or, if smaller, what remains in this process's
// control group or a group around it. Returns the largest number if the system reports neither. `root` is the folder
// that holds proc and sys.
int64_t available_memory_bytes(const std::filesystem::path& root = "/");

// Returns the machine's memory in bytes or, if smaller, the limit of this process's control group or a group around it.
int64_t usable_memory_bytes(const std::filesystem::path& root = "/");

// Returns the bytes that remain under the limit on this process' address space (ulimit -v), or the largest number
// without a limit. Memory that is reserved but not used counts against the limit too.
int64_t available_address_space_bytes();

// The message to the user if the program cannot allocate memory: how much memory remained, and what to do.
std::string lack_of_memory_message();

}  // namespace copus
