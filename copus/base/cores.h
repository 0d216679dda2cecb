// The number of processor cores that this process may use.
#pragma once

#include <cstdint>

namespace copus {

// Counts the cores that this process may run on; a scheduler may have given it fewer than the machine has.
int64_t usable_cores();

}  // namespace copus
