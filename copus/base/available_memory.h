// The amount of memory that this process could still take.
#pragma once

#include <cstdint>

namespace copus {

// Returns bytes: the system's estimate (MemAvailable), or what the control group of a container leaves where that is
// less; the largest number where neither states anything.
int64_t available_memory_bytes();

}  // namespace copus
