// The amount of memory that this process could still take.
#pragma once

#include <cstdint>
#include <string>

namespace copus {

// Returns the free memory in bytes: the system's estimate (MemAvailable) or, if smaller, the free memory of the
// container's control group. Returns the largest number if the system reports neither.
int64_t available_memory_bytes();

// Returns the bytes that remain under the limit on this process' address space (ulimit -v), or the largest number
// without a limit. Memory that is reserved but not used counts against the limit too.
int64_t available_address_space_bytes();

// The message to the user if the program cannot allocate memory: how much memory remained, and what to do.
std::string lack_of_memory_message();

}  // namespace copus
