// The amount of memory that this process could still take.
#pragma once

#include <cstdint>
#include <string>

namespace copus {

// Returns bytes: the system's estimate (MemAvailable), or what the control group of a container leaves where that is
// less; the largest number where neither states anything.
int64_t available_memory_bytes();

// Returns the bytes that a limit on this process' address space (ulimit -v) leaves it; the largest number where there
// is no limit. Memory that is reserved and not used counts against it.
int64_t available_address_space_bytes();

// Tells a user whose program gets no more memory what there was and what to do.
std::string lack_of_memory_message();

}  // namespace copus
