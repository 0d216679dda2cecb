// The processor cores that there are for this process.
#pragma once

#include <cstdint>

namespace copus {

// Those that this process may run on: a scheduler may have given it fewer than the machine has.
int64_t usable_cores();

}  // namespace copus
