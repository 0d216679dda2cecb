// How much memory this process could still have.
#pragma once

#include <cstdint>

namespace copus {

// In bytes, as the system estimates it (MemAvailable), and no more than what the control group of a container leaves;
// the largest number where neither says anything.
int64_t available_memory_bytes();

}  // namespace copus
